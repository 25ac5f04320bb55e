"""The executor on a CUDA device, end to end.

pytest -m gpu packages/openinfer-runtime/tests/test_cuda.py
"""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from openinfer_contract import (
    Finished,
    LogprobOptions,
    PromptLogprobOptions,
    StartTrace,
    StopTrace,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from openinfer_engine import assemble
from openinfer_runtime import InsufficientMemory
from openinfer_testing import read_trace
from openinfer_testing.torch import run_gate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHAPES = ("gqa2-d64-untied", "odd7-mqa-d64", "gqa4-d128-tied", "gqa2-yarn")
CUDA = {"device": "cuda", "gpu_memory_utilization": 0.5}
MIXED = (
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.7, "top_p": 0.9, "seed": 2**64 - 1},
    {"temperature": 1.3, "top_k": 12, "min_p": 0.01, "seed": 0},
)
SHAPED = (
    {"repetition_penalty": 1.9},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": 0.6, "seed": 6},
    {"temperature": 2.0, "bad_words": (pack_ids([3, 4]),), "logit_bias": ((3, 1.0),), "seed": 7},
    {"temperature": 1.5, "top_p": 0.8, "repetition_penalty": 0.7, "seed": 8},
)


@pytest.fixture(autouse=True)
def _full_precision():
    # The gate's bound for float32 assumes matrix products in float32, not in TF32.
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", [8, 512])
@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
def test_forced_prompts_and_decoded_tokens(engine, ask, prompts, shape, dtype, budget, eager):
    runner = engine(shape, dtype=dtype, max_num_batched_tokens=budget, enforce_eager=eager, **CUDA)
    assert (runner.executor._graphs is None) == eager
    wish = PromptLogprobOptions(num_top=20)
    outputs = runner.run(
        [ask(ids, max_tokens=30, wants_all=True, prompt_logprobs=wish) for ids in prompts]
    )
    sequences = [ids + output.token_ids for ids, output in zip(prompts, outputs, strict=True)]
    rows = []
    for ids, output in zip(prompts, outputs, strict=True):
        forced = np.full((len(ids) - 1, output.by_id.shape[1]), np.nan, np.float32)
        scores = output.event.prompt_logprobs.logprobs
        top_ids = np.array(unpack_ids(scores.top_ids)).reshape(len(forced), 20)
        top = np.array(unpack_floats(scores.top)).reshape(len(forced), 20)
        np.put_along_axis(forced, top_ids, top, axis=1)
        rows.append(np.concatenate([forced, output.by_id]))
    run_gate(runner.spec.model_path, lambda _: rows, sequences, DTYPES[dtype]).check()


@pytest.mark.parametrize("shape", SHAPES)
def test_graphs_draw_what_launches_draw(engine, ask, prompts, shape):
    """Runs prompts and decode steps by replays alone, with every kind of control."""

    def run(**options):
        runner = engine(shape, dtype="float32", **options, **CUDA)
        requests = [
            ask(ids, max_tokens=40, **sampling)
            for ids, sampling in zip(prompts * 2, (*MIXED, *SHAPED), strict=True)
        ]
        return [output.token_ids for output in runner.run(requests)]

    expected = run(enforce_eager=True)
    assert run() == expected
    assert run(max_num_batched_tokens=11) == expected
    assert run(max_num_seqs=3) == expected


@pytest.mark.parametrize("num_with", [1, 8])
def test_logprobs_leave_the_recorded_draw_as_it_is(engine, ask, prompts, monkeypatch, num_with):
    """Logprobs are computed after the captured draw; no row takes another draw because of them."""
    modes = ("raw", "processed")
    wishes = [
        {"logprobs": LogprobOptions(num_top=index, token_ids=pack_ids([7]), mode=modes[index % 2])}
        if index >= 8 - num_with
        else {}
        for index in range(8)
    ]

    def run(**options):
        runner = engine(dtype="float32", **options, **CUDA)
        requests = [
            ask(ids, max_tokens=40, **sampling, **wish)
            for ids, sampling, wish in zip(prompts * 2, (*MIXED, *SHAPED), wishes, strict=True)
        ]
        if not options:

            def refuse(*arguments, **more):
                raise AssertionError("this draw should have been a captured one")

            monkeypatch.setattr(runner.executor._sampler, "sample", refuse)
        return runner.run(requests)

    for ours, theirs in zip(run(), run(enforce_eager=True), strict=True):
        assert ours.token_ids == theirs.token_ids
        ours, theirs = ours.event.logprobs, theirs.event.logprobs
        assert (ours is None) == (theirs is None)
        if ours is not None:
            _check_logprobs(ours, theirs)


def _check_logprobs(ours, theirs, tolerance=1e-3):
    """Equal within the tolerance, and in order where that leaves no doubt of it."""
    for column in ("sampled", "top", "by_id"):
        got, expected = (unpack_floats(getattr(each, column)) for each in (ours, theirs))
        assert got == pytest.approx(expected, abs=tolerance), column
    ids, expected_ids = (np.array(unpack_ids(each.top_ids), np.int64) for each in (ours, theirs))
    ranks, expected_ranks = (np.array(unpack_ids(each.ranks)) for each in (ours, theirs))
    assert len(ids) == len(expected_ids)
    assert len(ranks) == len(expected_ranks)
    if theirs.num_top < 2:
        return
    top = np.array(unpack_floats(theirs.top)).reshape(len(ranks), theirs.num_top)
    with np.errstate(invalid="ignore"):  # two ids with -inf are not in any order
        is_above_next = top[:, :-1] - top[:, 1:] > 2 * tolerance
    # Ids after the last one are unknown.
    is_clear = is_above_next.copy()
    is_clear[:, 1:] &= is_above_next[:, :-1]
    ids, expected_ids = (each.reshape(top.shape)[:, :-1] for each in (ids, expected_ids))
    assert (ids == expected_ids)[is_clear].all()
    index = np.minimum(expected_ranks, theirs.num_top - 1) - 1
    is_known = (expected_ranks < theirs.num_top) & is_clear[np.arange(len(ranks)), index]
    assert (ranks == expected_ranks)[is_known].all()


def test_what_was_recorded_holds_while_slots_change_hands(engine, ask, prompts):
    runner = engine(dtype="float32", max_num_seqs=3, **CUDA)
    alone = [runner.run([ask(ids, max_tokens=9)])[0].token_ids for ids in prompts]
    num_captured = len(runner.executor._graphs._forwards)
    for _ in range(4):
        outputs = runner.run([ask(ids, max_tokens=9) for ids in prompts])
        assert [output.token_ids for output in outputs] == alone
    while runner.executor.prepare():
        pass
    assert len(runner.executor._graphs._forwards) > num_captured
    outputs = runner.run([ask(ids, max_tokens=9) for ids in prompts])
    assert [output.token_ids for output in outputs] == alone


def test_the_same_as_the_cpu_in_float32(engine, ask, prompts):
    def run(**options):
        runner = engine(dtype="float32", **options)
        requests = [
            ask(ids, max_tokens=24, logprobs=LogprobOptions(num_top=5), **sampling)
            for ids, sampling in zip(prompts, MIXED, strict=True)
        ]
        return runner.run(requests)

    for here, there in zip(run(device="cpu"), run(**CUDA), strict=True):
        assert here.token_ids == there.token_ids
        ours, theirs = (unpack_floats(o.event.logprobs.sampled) for o in (here, there))
        assert ours == pytest.approx(theirs, abs=1e-2)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 11},
        {"max_num_seqs": 2},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_the_same_tokens_however_they_are_batched(engine, ask, prompts, options):
    def requests():
        return [
            ask(ids, max_tokens=24, **sampling)
            for ids, sampling in zip(prompts, MIXED, strict=True)
        ]

    alone = engine(dtype="float32", **CUDA)
    expected = [alone.run([request])[0].token_ids for request in requests()]
    runner = engine(dtype="float32", **CUDA, **options)
    for _ in range(2):
        assert [output.token_ids for output in runner.run(requests())] == expected


@pytest.mark.parametrize(
    "options",
    [{}, {"enforce_eager": True}, {"max_num_batched_tokens": 11}],
    ids=str,
)
def test_the_same_tokens_over_shared_prefixes(engine, ask, prompts, eager_to_share, options):
    """Rows of two shared prefixes start and end, while other prompts are chunked."""

    def requests():
        return [
            ask(prefix + ids, max_tokens=16 + 5 * index, **sampling)
            for prefix in (prompts[3][:48], prompts[0][:32] + prompts[3])
            for index, (ids, sampling) in enumerate(zip(prompts, MIXED, strict=True))
        ]

    plain = engine(dtype="float32", enable_prefix_caching=False, **CUDA)
    expected = [plain.run([request])[0].token_ids for request in requests()]
    runner = engine(dtype="float32", **CUDA, **options)
    groups, num_shared = runner.executor._prefix_groups, []
    found = groups.of
    groups.of = lambda plan: num_shared.append(len(found(plan))) or found(plan)
    for _ in range(2):
        assert [output.token_ids for output in runner.run(requests())] == expected
    assert max(num_shared) >= (1 if options else 2)


def test_preempted_sequences_replay_their_tokens(engine, ask, prompts, block_bytes):
    small = engine(kv_cache_bytes=10 * block_bytes, max_model_len=80, dtype="float32", **CUDA)
    roomy = engine(dtype="float32", **CUDA)
    outputs, expected = (
        [o.token_ids for o in runner.run([ask(ids, max_tokens=24) for ids in prompts])]
        for runner in (small, roomy)
    )
    assert small.loop.load().num_preemptions > 0
    assert outputs == expected


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_launch_and_sample_never_wait_for_the_device(engine, ask, prompts):
    runner = engine(**CUDA)
    executor = runner.executor
    order = []

    def watched(name, method):
        def call(*arguments):
            order.append(name)
            try:
                torch.cuda.set_sync_debug_mode("error")
                return method(*arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call

    def requests():
        wish = LogprobOptions(num_top=3)
        return [
            ask(ids, max_tokens=16, min_tokens=4, logprobs=wish, **sampling)
            for ids, sampling in zip(prompts, MIXED, strict=True)
        ]

    runner.run(requests())  # compiles
    wait = executor.wait
    executor.launch = watched("launch", executor.launch)
    executor.sample = watched("sample", executor.sample)
    executor.wait = lambda ticket: order.append("wait") or wait(ticket)
    runner.loop = assemble(executor, runner.options)
    outputs = runner.run(requests())
    assert all(len(output.token_ids) == 16 for output in outputs)
    # Two steps are in flight before the first is waited for.
    assert order[:5] == ["launch", "sample", "launch", "sample", "wait"]


def test_the_host_is_ahead_of_the_device(engine, ask, prompts):
    """With the device held up, both calls return: nothing in them depends on its results."""
    runner = engine(**CUDA)
    runner.run([ask(ids, max_tokens=8) for ids in prompts])
    executor = runner.executor
    launch, was_busy = executor.launch, []

    def held_up(plan):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        ticket = launch(plan)
        was_busy.append(not torch.cuda.current_stream().query())
        return ticket

    executor.launch = held_up
    outputs = runner.run([ask(ids, max_tokens=8) for ids in prompts])
    assert all(len(output.token_ids) == 8 for output in outputs)
    assert all(was_busy)


def test_chunks_that_pile_up_keep_their_tokens(engine, ask):
    """The host does not wait for chunks that sample nothing; a busy device gets a backlog."""
    runner = engine(dtype="float32", max_num_batched_tokens=16, enable_prefix_caching=False, **CUDA)
    prompt = np.random.default_rng(3).integers(320, size=300).tolist()
    (expected,) = runner.run([ask(prompt, max_tokens=8)])
    executor = runner.executor
    launch = executor.launch

    def held_up(plan):
        torch.cuda._sleep(20_000_000)  # some ten milliseconds
        return launch(plan)

    executor.launch = held_up
    (output,) = runner.run([ask(prompt, max_tokens=8)])
    assert output.token_ids == expected.token_ids


def test_ten_thousand_requests_leave_nothing_behind(engine, ask):
    """Prompts of all lengths, every control, aborts at every point: no block, no byte stays."""
    runner = engine(max_num_seqs=64, max_num_batched_tokens=512, **CUDA)
    while runner.executor.prepare():  # otherwise a rare shape would be captured in a later round
        pass
    loop, rng = runner.loop, np.random.default_rng(5)
    prefixes = [rng.integers(320, size=100).tolist() for _ in range(8)]
    live, num_ended, held, unfinished = set(), 0, [], []

    def submit():
        prompt = prefixes[rng.integers(8)][: rng.integers(101)]
        prompt = prompt + rng.integers(320, size=rng.integers(1, 60)).tolist()
        control = (MIXED + SHAPED)[rng.integers(8)]
        request = ask(prompt, max_tokens=int(rng.integers(1, 24)), **control)

        def take(event):
            nonlocal num_ended
            if event.end is not None:
                live.remove(request.request_id)
                num_ended += 1
                if not isinstance(event.end, Finished):
                    unfinished.append((event.end, request.sampling))

        live.add(request.request_id)
        loop.submit(request, take)

    for round_ in range(1, 6):
        num_left = 2000
        while num_left or loop.has_work:
            for _ in range(min(num_left, int(rng.integers(8)))):
                submit()
                num_left -= 1
            if live and rng.random() < 0.3:
                loop.abort([sorted(live)[rng.integers(len(live))]])
            loop.step()
        assert num_ended == 2000 * round_
        assert loop.load().is_idle
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        held.append((torch.cuda.memory_allocated(), pages * os.sysconf("SC_PAGE_SIZE")))
    assert unfinished == []
    device, host = zip(*held[1:], strict=True)  # the first round captures and compiles
    assert len(set(device)) == 1
    assert max(host) - min(host) < 30e6


def test_a_row_with_nan_logits_fails_alone(engine, ask, prompts, monkeypatch):
    runner = engine(enforce_eager=True, **CUDA)  # a captured step calls no Python
    logits = runner.executor._model.logits
    num_calls = iter(range(1000))

    def poisoned(hidden):
        rows = logits(hidden)
        if next(num_calls) == 5:
            rows[1, 7] = torch.nan
        return rows

    monkeypatch.setattr(runner.executor._model, "logits", poisoned)
    outputs = runner.run([ask(ids, max_tokens=20) for ids in prompts])
    assert sorted(len(output.token_ids) for output in outputs) == [5, 20, 20, 20]


def test_the_memory_plan_is_kept(engine, ask, prompts):
    before, total = torch.cuda.mem_get_info()
    # Utilization includes the memory of other processes, so it is added to the test's own share.
    share = (total - before) / total + 0.3
    runner = engine(device="cuda", gpu_memory_utilization=share, max_num_batched_tokens=2048)
    parts = dict(runner.executor.info.memory)
    assert all(num_bytes > 0 for num_bytes in parts.values())
    runner.run([ask(ids, max_tokens=4) for ids in prompts])
    used = before - torch.cuda.mem_get_info()[0]
    assert used < 0.3 * total
    runner.executor.close()


def test_a_budget_without_room_for_the_cache_says_which_flag(engine):
    with pytest.raises(InsufficientMemory, match="--gpu-memory-utilization"):
        engine(device="cuda", gpu_memory_utilization=1e-6, max_model_len=512)


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
def test_steps_and_their_kernels_are_traced(engine, ask, tmp_path, eager):
    runner = engine(enforce_eager=eager, **CUDA)
    runner.run([ask(range(3, 40), max_tokens=20)])  # captures what is captured on demand
    runner.loop.start_trace(StartTrace(str(tmp_path / "t.json"), has_kernels=True))
    runner.run([ask(range(50, 90), max_tokens=30)])
    results = []
    runner.loop.control(StopTrace(), results.append)
    runner.loop.step()
    trace = read_trace(results[0].message)
    spans = trace.on(f"engine {runner.executor.info.device}")
    forwards = [span for span in spans if span.name == "forward" and "step" in span.args]
    kernels = [span for span in spans if "step" not in span.args]
    steps = {s.args["step"]: s for s in trace.on("engine steps") if not s.depth}
    num_rows = {n: s.args["decode_rows"] + s.args["prefill_rows"] for n, s in steps.items()}
    timed = {span.args["step"] for span in forwards}
    assert {number for number, count in num_rows.items() if count} <= timed
    for one, two in itertools.pairwise(forwards):
        assert one.end <= two.begin
    for forward in forwards:
        step = steps[forward.args["step"]]
        assert step.begin - 50 <= forward.begin <= forward.end <= step.end + 50
        inside = [k for k in kernels if forward.begin - 50 <= k.begin <= k.end <= forward.end + 50]
        assert len(inside) >= 10 or not num_rows[forward.args["step"]]
