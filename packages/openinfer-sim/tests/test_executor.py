"""The modelled executor with the real scheduler, and the time that its steps take."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from openinfer_contract import (
    CommandFailed,
    GenerateRequest,
    ResetPrefixCache,
    Sampling,
    StopRules,
    pack_ids,
    unpack_ids,
)
from openinfer_kv_cache import KVCache
from openinfer_scheduler import Scheduler, SchedulerConfig
from openinfer_sim import (
    CostModel,
    ModelledExecutor,
    Setup,
    VirtualClock,
    find_device,
    find_model,
    load_figures,
)
from openinfer_sim.device._content import Content
from openinfer_sim.device._executor import HostCosts

_COST = CostModel(find_model("qwen3-4b"), find_device("h200"), load_figures().overheads)


class _Engine:
    """Scheduler and executor, stepped by hand one step at a time."""

    def __init__(self, *, num_blocks=1000, content=None, **limits):
        setup = Setup(kv_cache_bytes=num_blocks * 16 * 147_456, **limits)
        self.info = setup.executor_info()
        self.clock = VirtualClock()
        self.content = content or Content(1000)
        self.executor = ModelledExecutor(self.info, _COST, self.content, self.clock)
        config = SchedulerConfig(
            max_model_len=self.info.max_model_len,
            max_num_seqs=self.info.max_num_seqs,
            max_num_batched_tokens=self.info.max_num_batched_tokens,
            depth=1,
            seed=0,
        )
        cache = KVCache(self.info.cache_groups, num_blocks=num_blocks)
        self.scheduler = Scheduler(config, cache)
        self.output = {}
        self.durations = []
        self.num_preemptions = 0

    def add(self, request_id, num_prompt=20, max_tokens=10, **options):
        request = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=pack_ids([sum(map(ord, request_id)) % 997] * num_prompt),
            stop=StopRules(max_tokens=max_tokens, ignore_eos=True),
            **options,
        )
        assert self.scheduler.add(request, self.clock()) is None

    def step(self):
        plan = self.scheduler.plan(self.clock())
        begun = self.clock()
        ticket = self.executor.launch(plan)
        self.executor.sample(ticket, {})
        result = self.executor.wait(ticket)
        self.durations.append(self.clock() - begun)
        for request_id, event in self.scheduler.apply(result, self.clock()):
            self.output.setdefault(request_id, []).extend(unpack_ids(event.token_ids))
            if event.end is not None:
                self.num_preemptions += event.end.num_preemptions
        return plan

    def run(self):
        while self.scheduler.has_work:
            self.step()
        return self.output


def test_a_decode_step_takes_what_the_model_says():
    engine = _Engine()
    engine.add("a", num_prompt=100, max_tokens=4)
    engine.add("b", num_prompt=60, max_tokens=4)
    engine.run()
    pairs = 100 * 101 // 2 + 60 * 61 // 2
    prefill = _COST.mixed_s(
        num_decode_rows=0,
        num_decode_kv_tokens=0,
        num_prefill_rows=2,
        num_prefill_tokens=160,
        num_prefill_pairs=pairs,
        num_prefill_kv_tokens=160,
        num_sampled=2,
    )
    decodes = [_COST.decode_s(2, 162 + 2 * i) for i in range(3)]
    # The last plan only releases the slots.
    assert engine.durations == pytest.approx([prefill, *decodes, 0.0])


def test_many_steps_at_once_give_the_tokens_and_the_times_of_each():
    """Two equal executors: one skips over decode steps, the other runs them one by one."""
    ours, theirs = (_Engine() for _ in range(2))
    for engine in (ours, theirs):
        engine.executor = ModelledExecutor(
            engine.info, _COST, engine.content, engine.clock, HostCosts(step_s=0.02, row_s=0.001)
        )
        for name in ("a", "b", "c"):
            engine.add(name, num_prompt=ord(name), max_tokens=90)
        for _ in range(3):
            plan = engine.step()
        engine.executor.launch(replace(plan, step_id=4))
    until = ours.clock() + 0.5
    num_steps, columns = ours.executor.run_decode_steps(60, until)
    one_by_one, times = [], []
    for step_id in range(4, 4 + num_steps):
        assert theirs.clock() < until
        theirs.executor.launch(replace(plan, step_id=step_id + 1))
        one_by_one.append(theirs.executor.wait(step_id).token_ids.tolist())
        times.append(theirs.clock())
    assert theirs.clock() >= until
    assert [unpack_ids(column) for column in columns] == [*map(list, zip(*one_by_one, strict=True))]
    assert ours.executor.step_times == times
    assert ours.clock() == theirs.clock()
    assert ours.executor.busy_until == theirs.executor.busy_until
    last = 4 + num_steps
    ours_last, theirs_last = (e.executor.wait(last).token_ids.tolist() for e in (ours, theirs))
    assert ours_last == theirs_last


def test_it_is_known_how_long_repeated_steps_take_at_least():
    engine = _Engine()
    engine.add("a", num_prompt=5000, max_tokens=90)
    for _ in range(3):
        plan = engine.step()
    engine.executor.launch(replace(plan, step_id=4))
    least = engine.executor.earliest_end(40)
    assert engine.executor.run_decode_steps(40, inf)[0] == 40
    assert 0.99 < least / engine.clock() < 1.0


def test_a_step_of_decodes_and_a_chunk_counts_both():
    engine = _Engine(max_num_batched_tokens=64, max_num_seqs=4)
    engine.add("a", num_prompt=20, max_tokens=9)
    engine.step()
    engine.add("b", num_prompt=100, max_tokens=2)
    engine.step()
    assert engine.durations[-1] == pytest.approx(
        _COST.mixed_s(
            num_decode_rows=1,
            num_decode_kv_tokens=21,
            num_prefill_rows=1,
            num_prefill_tokens=63,
            num_prefill_pairs=63 * 64 // 2,
            num_prefill_kv_tokens=63,
            num_sampled=1,
        )
    )
    engine.step()
    assert engine.durations[-1] == pytest.approx(
        _COST.mixed_s(
            num_decode_rows=1,
            num_decode_kv_tokens=22,
            num_prefill_rows=1,
            num_prefill_tokens=37,
            num_prefill_pairs=37 * 63 + 37 * 38 // 2,
            num_prefill_kv_tokens=100,
            num_sampled=2,
        )
    )


def test_steady_steps_cost_what_they_would_one_by_one():
    """Rows start and end between runs of decode steps. Every step's duration fits the rows'
    lengths.
    """
    engine = _Engine()
    for i in range(5):
        engine.add(f"r{i}", num_prompt=30 + i, max_tokens=5 + 7 * i)
    lengths = {}
    while engine.scheduler.has_work:
        plan = engine.step()
        for start in plan.starts:
            lengths[start.slot] = start.num_cached_tokens
        is_decode = all(row.token_ids is None for row in plan.rows) and bool(plan.rows)
        for row in plan.rows:
            lengths[row.slot] += row.num_tokens
        if is_decode:
            kv = sum(lengths[row.slot] for row in plan.rows)
            assert engine.durations[-1] == pytest.approx(_COST.decode_s(len(plan.rows), kv))


def test_the_device_runs_one_step_after_the_other_and_the_host_beside_it():
    clock = VirtualClock()
    info = Setup().executor_info()
    host = HostCosts(step_s=0.001, row_s=0.0)
    executor = ModelledExecutor(info, _COST, Content(100), clock, host)
    engine = _Engine()
    engine.executor = ModelledExecutor(engine.info, _COST, engine.content, engine.clock, host)
    engine.add("a", num_prompt=20, max_tokens=3)
    first = engine.scheduler.plan(0.0)
    executor.launch(first)
    assert clock.now == pytest.approx(0.001)
    due = executor.busy_until
    assert due > clock.now
    assert executor.wait(first.step_id).step_id == first.step_id
    assert clock.now == due


@pytest.mark.parametrize("sampling", [Sampling(seed=5), Sampling(temperature=0.0)])
def test_tokens_do_not_depend_on_the_batch_or_on_preemption(sampling):
    alone = _Engine()
    alone.add("a", max_tokens=60, sampling=sampling)
    crowded = _Engine(num_blocks=16, max_num_seqs=8)
    for name in "bcd":
        crowded.add(name, max_tokens=70)
    crowded.add("a", max_tokens=60, sampling=sampling)
    assert crowded.run()["a"] == alone.run()["a"]
    assert crowded.num_preemptions > 0


def test_other_seeds_and_other_prompts_get_other_tokens():
    engine = _Engine()
    engine.add("a", sampling=Sampling(seed=1))
    engine.add("b", sampling=Sampling(seed=2))
    engine.add("c", num_prompt=21, sampling=Sampling(temperature=0))
    engine.add("d", num_prompt=22, sampling=Sampling(temperature=0))
    output = engine.run()
    assert len(set(map(tuple, output.values()))) == 4


def test_content_answers_only_what_is_allowed():
    allowed = np.arange(10, 20, dtype=np.uint32)
    content = Content(100, eos_token_ids=(15, 3), allowed=allowed)
    read = set(content.read(np.arange(100_000)).tolist())
    assert read == set(range(10, 20)) - {15}


def test_content_ends_after_about_so_many_tokens():
    content = Content(100, eos_token_ids=(7,), mean_output_tokens=50)
    ids = content.read(np.arange(65_536))
    assert 65_536 / (ids == 7).sum() == pytest.approx(50, rel=0.1)


def test_it_has_no_commands():
    engine = _Engine()
    assert isinstance(engine.executor.control(ResetPrefixCache()), CommandFailed)


@pytest.mark.parametrize(
    ("model", "num_tokens", "gigabytes"),
    [
        ("qwen3-4b", 1, 8.045),
        ("qwen3-8b", 1, 15.137),
        ("qwen3_5-4b", 1, 8.41),
        ("deepseek-v2-lite", 1, 4.903),
        ("deepseek-v2-lite", 10**9, 31.0),
    ],
)
def test_a_step_reads_the_weights_it_needs(model, num_tokens, gigabytes):
    figures = find_model(model)
    assert figures.weight_bytes(num_tokens) / 1e9 == pytest.approx(gigabytes, rel=5e-3)


def test_a_step_of_nothing_but_weights_is_never_faster_than_the_memory():
    overheads, device = load_figures().overheads, find_device("h200")
    for model in load_figures().model.values():
        floor = model.weight_bytes(1) / device.read_bytes_per_s
        assert CostModel(model, device, overheads).decode_s(1, 1) > floor
