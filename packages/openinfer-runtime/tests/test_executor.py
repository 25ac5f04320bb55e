import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from openinfer_contract import (
    Failed,
    LogprobOptions,
    ResetPrefixCache,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from openinfer_engine import ExecutorDead, StepFailed, assemble
from openinfer_kv_cache import BlockCopy
from openinfer_runtime import TorchExecutor
from openinfer_scheduler import PlannedRow, RowStart, StepPlan

# Half of all pairs of the ids that a request may use, so that every other token is restricted.
BAD_WORDS = tuple(pack_ids([i, (i + step) % 8]) for i in range(8) for step in range(4))
ALLOWED = pack_ids(range(40, 90))
MIXED = (
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.7, "top_p": 0.9, "seed": 2**64 - 1},
    {"temperature": 1.3, "top_k": 12, "min_p": 0.01, "seed": 0},
    {"repetition_penalty": 1.9},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": 0.6, "seed": 6},
    {"temperature": 2.0, "bad_words": BAD_WORDS, "logit_bias": ((3, 1.0),), "seed": 7}
    | {"allowed_token_ids": pack_ids(range(8))},
    {"temperature": 1.5, "top_p": 0.8, "repetition_penalty": 0.7, "seed": 8}
    | {"allowed_token_ids": ALLOWED},
)
"""Sampling of the requests below: plain, and with controls that depend on the output so far."""


@pytest.fixture
def requests(ask, prompts):
    """Requests with mixed controls; every call makes new request ids."""

    def make(**common):
        return [
            ask(ids, max_tokens=24, **sampling, **common)
            for ids, sampling in zip(prompts * 2, MIXED, strict=True)
        ]

    return make


@pytest.fixture(scope="session")
def expected(engine, ask, prompts) -> list[list[int]]:
    """Tokens of each of `requests` when it runs alone."""
    runner = engine(enable_prefix_caching=False)
    return [
        runner.run([ask(ids, max_tokens=24, **sampling)])[0].token_ids
        for ids, sampling in zip(prompts * 2, MIXED, strict=True)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 11},
        {"max_num_seqs": 2},
        {"block_size": 4},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_the_same_tokens_however_they_are_batched(engine, requests, expected, options):
    runner = engine(**options)
    for _ in range(2):  # the second time over cached prefixes
        outputs = runner.run(requests())
        assert [output.token_ids for output in outputs] == expected


@pytest.mark.parametrize(
    "options", [{}, {"max_num_batched_tokens": 11}, {"max_num_seqs": 3}], ids=str
)
def test_the_same_tokens_in_padded_steps(engine, requests, expected, options):
    # The steps that a GPU captures, with every operation launched.
    runner = engine(**options).pad_steps()
    graphs = runner.executor._graphs
    for _ in range(2):
        outputs = runner.run(requests())
        assert [output.token_ids for output in outputs] == expected
    shapes = set(graphs._forwards)
    assert any(shape.is_decode for shape in shapes)
    assert any(not shape.is_decode for shape in shapes)


def test_a_padded_step_is_bit_equal_to_a_plain_one(engine, ask, prompts):
    # One row is padded to one row, so only the path differs.
    def logprobs(runner):
        request = ask(prompts[2], max_tokens=20, wants_all=True)
        return runner.run([request])[0].event.logprobs.by_id

    assert logprobs(engine().pad_steps()) == logprobs(engine())


def test_a_step_may_be_recorded_before_there_is_one(engine, requests, expected):
    runner = engine(max_num_batched_tokens=40).pad_steps()
    executor = runner.executor
    num_urgent = num_all = 0
    while executor.prepare(is_urgent=True):
        num_urgent += 1
    while executor.prepare():
        num_all += 1
    assert num_urgent > 0
    assert num_all > 0
    assert num_urgent + num_all == len(executor._graphs._forwards)
    assert [output.token_ids for output in runner.run(requests())] == expected
    assert num_urgent + num_all == len(executor._graphs._forwards)


@pytest.mark.parametrize("is_prepared", [True, False])
def test_steps_that_cannot_be_captured_are_launched(
    engine, requests, expected, caplog, is_prepared
):
    num_captured = iter(range(100))

    def refuse(work):
        if not is_prepared and next(num_captured) < 2:
            return work
        raise RuntimeError("no graphs today")

    runner = engine(max_num_batched_tokens=40).pad_steps()
    runner.executor._graphs._capture = refuse
    if is_prepared:
        assert not runner.executor.prepare()
    assert [output.token_ids for output in runner.run(requests())] == expected
    assert caplog.text.count("no graphs today") >= 1
    assert runner.executor._graphs is None


def test_a_preempted_sequence_replays_its_tokens(engine, requests, expected, block_bytes):
    runner = engine(kv_cache_bytes=10 * block_bytes, max_model_len=80)
    outputs = runner.run(requests())
    assert runner.loop.load().num_preemptions > 0
    assert [output.token_ids for output in outputs] == expected


def test_the_output_keeps_to_its_bans(expected):
    pairs = {pack_ids(pair) for pair in pairwise(expected[6])}
    assert len(pairs) > 5
    assert not pairs & set(BAD_WORDS)
    assert set(expected[7]) <= set(unpack_ids(ALLOWED))
    assert set(expected[7]) > {expected[7][0]}


def test_an_output_prefix_counts_as_output(engine, requests, expected):
    # After a migration penalties, bad words and random numbers continue from the output prefix.
    resumed = [
        replace(
            request,
            prompt_token_ids=request.prompt_token_ids + pack_ids(token_ids[:11]),
            num_output_prefix=11,
            sampling=replace(request.sampling, seed=request.sampling.seed or 0),
        )
        for request, token_ids in zip(requests(), expected, strict=True)
    ]
    outputs = engine().run(resumed)
    assert [output.token_ids for output in outputs] == [ids[11:] for ids in expected]


def test_a_step_may_be_launched_before_the_last_is_read(engine, requests, expected):
    # As on a device: the next step's tokens come from the rows, the host does not know them yet.
    base = engine()
    executor = base.executor
    deep = TorchExecutor(executor._model, executor._cache, replace(executor.info, depth=2))
    launched, order = [], []
    launch, wait = deep.launch, deep.wait
    deep.launch = lambda plan: order.append("launch") or launched.append(plan) or launch(plan)
    deep.wait = lambda ticket: order.append("wait") or wait(ticket)
    base.loop = assemble(deep, base.options)
    outputs = base.run(requests())
    assert [output.token_ids for output in outputs] == expected
    assert order[:3] == ["launch", "launch", "wait"]


def test_logprobs_agree_however_they_are_batched(engine, requests):
    common = {"logprobs": LogprobOptions(num_top=5)}
    alone, together = engine(), engine(max_num_batched_tokens=16)
    singles = [alone.run([request])[0].event for request in requests(**common)]
    batch = [output.event for output in together.run(requests(**common))]
    for one, other in zip(singles, batch, strict=True):
        assert one.logprobs.top_ids == other.logprobs.top_ids
        for field in ("sampled", "top"):
            pair = [unpack_floats(getattr(event.logprobs, field)) for event in (one, other)]
            assert pair[0] == pytest.approx(pair[1], abs=1e-4)


def test_a_row_with_nan_logits_fails_alone(engine, ask, prompts, monkeypatch):
    runner = engine()
    logits = runner.executor._model.logits
    num_calls = iter(range(1000))

    def poisoned(hidden):
        rows = logits(hidden)
        if next(num_calls) == 5:
            rows[1, 7] = torch.nan
        return rows

    monkeypatch.setattr(runner.executor._model, "logits", poisoned)
    outputs = runner.run([ask(ids, max_tokens=20) for ids in prompts])
    ends = [output.event.end for output in outputs]
    failed = [end for end in ends if isinstance(end, Failed)]
    assert len(failed) == 1
    assert "NaN" in failed[0].message
    assert sorted(len(output.token_ids) for output in outputs) == [5, 20, 20, 20]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_rules_every_token_out_fails_alone(engine, ask, prompts, temperature):
    runner = engine()
    bans = {"allowed_token_ids": pack_ids([7]), "bad_words": (pack_ids([7, 7, 7]),)}
    requests = [ask(ids, max_tokens=20, temperature=temperature) for ids in prompts]
    requests[1] = ask(prompts[1], max_tokens=20, temperature=temperature, **bans)
    outputs = runner.run(requests)
    end = outputs[1].event.end
    assert isinstance(end, Failed)
    assert end.field == "sampling.allowed_token_ids"
    assert "bad_words" in end.message
    assert [len(output.token_ids) for output in outputs] == [20, 2, 20, 20]


def start(slot, request, blocks, seed=0):
    ids = np.array(unpack_ids(request.prompt_token_ids), np.uint32)
    return RowStart(
        slot=slot,
        request=request,
        token_ids=ids,
        num_output_tokens=0,
        num_cached_tokens=0,
        block_ids=(np.array(blocks, np.int32),),
        seed=seed,
    )


def prefill(slot, request, *, is_sampled=True):
    ids = np.array(unpack_ids(request.prompt_token_ids), np.uint32)
    none = (np.zeros(0, np.int32),)
    return PlannedRow(
        slot=slot, num_tokens=len(ids), token_ids=ids, new_block_ids=none, is_sampled=is_sampled
    )


def plan_of(step_id, *pairs, ends=()):
    return StepPlan(step_id=step_id, ends=ends, starts=tuple(pairs[::2]), rows=tuple(pairs[1::2]))


def run(executor, plan, masks=None):
    ticket = executor.launch(plan)
    executor.sample(ticket, masks or {})
    return executor.wait(ticket)


def test_parameters_that_a_row_cannot_hold_fail_it_alone(engine, ask):
    executor = engine().executor
    good, bad = ask([1, 2, 3]), ask([4, 5], bad_words=(pack_ids(range(33)),))
    result = run(
        executor,
        plan_of(1, start(0, bad, [0]), prefill(0, bad), start(3, good, [1]), prefill(3, good)),
    )
    assert "bad_words" in result.failed[0]
    assert result.counts.tolist() == [0, 1]
    assert len(result.token_ids) == 1
    # The slot's next sequence starts clean.
    again = run(executor, plan_of(2, start(0, good, [0]), prefill(0, good), ends=(0, 3)))
    assert not again.failed
    assert again.token_ids.tolist() == result.token_ids.tolist()


def test_a_device_has_its_forward_pass_before_the_host_sets_parameters(engine, ask, monkeypatch):
    executor = engine().executor
    order = []
    for owner, name in ((executor._model, "forward"), (executor._sampler, "set")):
        method = getattr(owner, name)

        def noted(*args, name=name, method=method, **options):
            order.append(name)
            return method(*args, **options)

        monkeypatch.setattr(owner, name, noted)
    request = ask([1, 2, 3])
    run(executor, plan_of(1, start(0, request, [0]), prefill(0, request)))
    assert order == ["forward", "set"]


def test_a_failed_forward_pass_leaves_others_their_parameters(engine, ask, monkeypatch):
    """A sequence may start in a step that has no row of it yet, and that fails."""
    executor = engine().executor
    one, two = ask([1, 2, 3]), ask([4, 5], logit_bias=((7, 100.0),))
    with monkeypatch.context() as patch:
        patch.setattr(executor._model, "logits", lambda *_: 1 / 0)
        plan = plan_of(1, start(0, one, [0]), prefill(0, one), start(1, two, [1]))
        ticket = executor.launch(plan)
        executor.sample(ticket, {})
        with pytest.raises(StepFailed):
            executor.wait(ticket)
    plan = StepPlan(step_id=2, ends=(), starts=(), rows=(prefill(1, two),))
    assert run(executor, plan).token_ids.tolist() == [7]


@pytest.mark.parametrize("field", ["copies_before", "copies_after"])
@pytest.mark.parametrize("has_rows", [True, False])
def test_a_plan_with_copies_fails(engine, ask, field, has_rows):
    """The executor once ignored copies."""
    request = ask([1, 2, 3])
    plan = plan_of(1, start(0, request, [0]), prefill(0, request)) if has_rows else plan_of(1)
    copies = {field: (BlockCopy(group=0, source=1, target=2, position=16),)}
    with pytest.raises(StepFailed):
        run(engine().executor, dataclasses.replace(plan, **copies))


@pytest.mark.parametrize("is_padded", [False, True])
def test_a_mask_binds_its_row(engine, ask, is_padded):
    executor = (engine().pad_steps() if is_padded else engine()).executor
    one, two = ask([1, 2, 3]), ask([1, 2, 3])
    bits = np.zeros(10, np.uint32)
    bits[9] = 1 << 31
    plan = plan_of(1, start(0, one, [0]), prefill(0, one), start(1, two, [1]), prefill(1, two))
    result = run(executor, plan, {1: bits})
    assert result.token_ids[1] == 319
    assert result.token_ids[0] != 319


def test_plans_without_rows_or_without_samples(engine, ask):
    executor = engine().executor
    request = ask([1, 2, 3])
    empty = run(executor, plan_of(1, ends=(2,)))
    assert len(empty.counts) == len(empty.token_ids) == 0
    plan = plan_of(2, start(0, request, [0]), prefill(0, request, is_sampled=False))
    result = run(executor, plan)
    assert result.counts.tolist() == [0]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RuntimeError("shape"), StepFailed, "RuntimeError"),
        (torch.OutOfMemoryError("CUDA out of memory"), StepFailed, "--max-num-batched-tokens"),
        (torch.AcceleratorError("CUDA error"), ExecutorDead, "device"),
    ],
    ids=["bug", "memory", "device"],
)
@pytest.mark.parametrize("stage", ["forward", "logits"])
def test_what_goes_wrong_is_said_by_wait(engine, ask, monkeypatch, error, kind, words, stage):
    executor = engine().executor
    request = ask([1, 2, 3])
    good = run(executor, plan_of(1, start(0, request, [0]), prefill(0, request)))

    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(executor._model, stage, fail)
        plan = plan_of(2, start(0, request, [0]), prefill(0, request))
        ticket = executor.launch(plan)
        executor.sample(ticket, {})
        with pytest.raises(kind, match=words):
            executor.wait(ticket)
    plan = plan_of(3, start(0, request, [0]), prefill(0, request))
    if kind is ExecutorDead:
        with pytest.raises(ExecutorDead):
            run(executor, plan)
    else:
        assert run(executor, plan).token_ids.tolist() == good.token_ids.tolist()


def test_close_is_idempotent_and_final(engine, ask):
    executor = engine().executor
    request = ask([1])
    assert executor.control(ResetPrefixCache()).kind == "unsupported"
    executor.close()
    executor.close()
    with pytest.raises(ExecutorDead):
        run(executor, plan_of(1, start(0, request, [0]), prefill(0, request)))
