"""Steps in which all running sequences decode: the policy is not asked for an order."""

import random
from dataclasses import replace
from operator import itemgetter

import numpy as np
import pytest

from openinfer_contract import TokenLogprobs, pack_floats, pack_ids
from openinfer_scheduler import StepResult
from openinfer_scheduler.plan._planner import Planner


def running(loop, num_requests, **options):
    """Returns a loop whose sequences all decode and have room for the next positions."""
    settings = {"num_blocks": 300, "max_num_batched_tokens": 64, "max_num_seqs": 6} | options
    subject = loop(**settings)
    for number in range(num_requests):
        subject.add([number] * 5, max_tokens=40, ignore_eos=True)
    for _ in range(4):
        subject.step()
    return subject


def test_a_prompt_that_starts_beside_decode_rows_continues_in_the_next_plan(loop):
    subject = running(loop, 2, depth=1, max_chunk_tokens=4)
    subject.add([9] * 12, max_tokens=2, ignore_eos=True)
    for num_tokens in (4, 4, 4, 1):
        plan = subject.plan()
        assert {row.slot: row.num_tokens for row in plan.rows} == {0: 1, 1: 1, 2: num_tokens}
        subject.complete()
    subject.run()


class Turning:
    """Serves the youngest first while `is_turned`."""

    is_turned = False
    num_asked = 0

    def order(self, sequences, now):
        self.num_asked += 1
        return list(reversed(sequences)) if self.is_turned else sequences

    def chunk(self, sequence, max_tokens):
        return max_tokens

    def victim(self, candidates):
        return candidates[-1]


def test_rows_that_take_blocks_keep_their_places(loop):
    policy = Turning()
    subject = running(loop, 3, depth=1, policy=policy, tokens_per_block=1)
    policy.num_asked = num_grown = 0
    for _ in range(30):
        plan = subject.plan()
        assert [row.slot for row in plan.rows] == [0, 1, 2]
        num_grown += sum(len(row.new_block_ids[0]) > 0 for row in plan.rows)
        subject.complete()
    assert num_grown > 3
    assert not policy.num_asked, "every sequence is served"
    subject.run()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("num_blocks", [18, 19, 20])
def test_the_policy_decides_which_sequence_is_preempted(loop, depth, is_turned, num_blocks):
    """Blocks run out before or after the first row that needs one, depending on `num_blocks`."""
    policy = Turning()
    subject = running(loop, 3, depth=depth, policy=policy, num_blocks=num_blocks, watermark=0.0)
    policy.is_turned = is_turned
    while not subject.scheduler.load().num_preemptions:
        subject.step()
    preempted = {s.request_id for s in subject.scheduler._state.live.values() if s.num_preemptions}
    assert preempted == {"r0" if is_turned else "r2"}
    subject.run()


@pytest.mark.parametrize("depth", [1, 2])
def test_stop_ids_end_decode_rows(loop, depth):
    subject = loop(num_blocks=300, max_num_batched_tokens=64, max_num_seqs=6, depth=depth)
    for number in range(6):
        subject.add([number] * 5, max_tokens=40, stop_token_ids=(number, 20), ignore_eos=True)
    subject.run()
    lengths = [
        len(subject.output[name]) for name, end in subject.ends.items() if end.reason == "stop"
    ]
    assert max(lengths) > 8


@pytest.mark.parametrize("counts", [[2, 0, 1], [1, 1], [1, 1, 1, 0], [1, 1, 0]])
def test_counts_that_do_not_fit_are_refused(loop, counts):
    subject = running(loop, 3, depth=1)
    plan = subject.plan()
    with pytest.raises(ValueError, match="has"):
        subject.scheduler.apply(
            StepResult(
                step_id=plan.step_id,
                counts=np.array(counts, np.int32),
                token_ids=np.zeros(sum(counts), np.uint32),
            ),
            subject.now,
        )


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_tokens", [29, 30, 31, 32, 33])
def test_a_stop_id_of_one_row_does_not_hide_the_end_of_another(loop, depth, max_tokens):
    """x samples a token that would end the other request, and later ends by length."""

    def run(stop_token_ids):
        subject = loop(
            num_blocks=600, max_num_batched_tokens=64, max_num_seqs=6, depth=depth,
            tokens_per_block=1, max_model_len=64,
        )  # fmt: skip
        subject.add([1] * 5, max_tokens=max_tokens, ignore_eos=True, request_id="x")
        subject.add(
            [2] * 5, max_tokens=50, min_tokens=50, ignore_eos=True, stop_token_ids=stop_token_ids
        )
        for _ in range(200):
            if subject.scheduler.has_work:
                subject.step()
        assert not subject.scheduler.has_work
        return subject.output["x"]

    expected = run(())
    assert len(expected) == max_tokens
    for token_id in sorted(set(expected)):
        assert run((token_id,)) == expected


def history(loop, seed, **options):
    """Returns row sizes and effects of every step while requests start and end."""
    rng = random.Random(seed)
    settings = {"num_blocks": 400, "max_num_batched_tokens": 64, "max_num_seqs": 6} | options
    subject = loop(**settings)
    seen = []
    for _ in range(150):
        if rng.random() < 0.25:
            subject.add(
                [rng.randrange(40) for _ in range(rng.randrange(1, 12))],
                max_tokens=rng.randrange(1, 40),
                stop_token_ids=(rng.randrange(40),) if rng.random() < 0.5 else (),
            )
        if rng.random() < 0.04 and (live := sorted(subject.requests.keys() - subject.ends.keys())):
            seen.append(subject.abort(rng.choice(live)))
        while (plan := subject.plan()) is not None:
            seen.append(sorted((row.slot, row.num_tokens) for row in plan.rows))
        if subject.in_flight:
            seen.append(sorted(subject.complete(), key=itemgetter(0)))
    subject.run()
    return seen


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_planning_in_the_policys_order_gives_the_same_plans(loop, monkeypatch, seed, depth):
    num_unordered = 0
    try_decode_rows = Planner._try_decode_rows

    def counted(self, builder):
        nonlocal num_unordered
        is_planned = try_decode_rows(self, builder)
        num_unordered += is_planned
        return is_planned

    monkeypatch.setattr(Planner, "_try_decode_rows", counted)
    seen = history(loop, seed, depth=depth)
    assert num_unordered > 10, "most steps were planned without an order"
    monkeypatch.setattr(Planner, "_try_decode_rows", lambda self, builder: False)
    assert history(loop, seed, depth=depth) == seen


@pytest.mark.parametrize("depth", [1, 2])
def test_steps_that_are_settled_row_by_row_end_every_request(loop, depth):
    """Steps with logprobs are settled row by row; that path must find ends by length, too."""
    subject = loop(
        num_blocks=600, max_num_batched_tokens=64, max_num_seqs=6, depth=depth,
        tokens_per_block=1, max_model_len=128,
    )  # fmt: skip
    for number in range(2):
        subject.add([number] * 5, max_tokens=100, ignore_eos=True)
    wait, columns = (
        subject.executor.wait,
        TokenLogprobs(sampled=pack_floats([0.0]), ranks=pack_ids([1])),
    )
    subject.executor.wait = lambda step_id: replace(
        wait(step_id), logprobs={0: columns} if 20 < step_id < 60 else {}
    )
    subject.run()
    assert all(end.reason == "length" for end in subject.ends.values())


def test_a_restarted_sequence_has_a_new_tenancy(loop):
    """A request that a failed step restarts decodes beside the same sequences a second time."""
    subject = running(loop, 2, depth=4, num_blocks=600)
    for _ in range(4):
        subject.step()
    assert subject.plan().rows
    subject.complete()
    subject.add([7] * 16, max_tokens=9, ignore_eos=True)
    assert len(subject.plan().starts) == 1, "in the step that will fail"
    subject.complete()
    subject.add([7] * 18, max_tokens=12, ignore_eos=True)
    subject.add([8] * 5, max_tokens=40, ignore_eos=True)
    assert [start.num_cached_tokens for start in subject.plan().starts] == [16, 0]
    subject.complete()
    assert len(subject.plan().rows) == 5
    while len(subject.in_flight) > 3:
        subject.complete()
    subject.executor.fail_step = 1.0
    subject.complete()
    subject.executor.fail_step = 0.0
    assert set(subject.ends) == {"r0", "r1", "r2"}
    while "r3" not in subject.ends:
        subject.step()
    assert "r4" not in subject.ends, "it made progress in the meantime"
    subject.run()
    assert subject.ends["r3"].num_preemptions == 1
    assert subject.ends["r4"].num_preemptions == 0
