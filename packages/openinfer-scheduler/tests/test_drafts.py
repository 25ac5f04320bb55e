"""Decode rows that verify drafts."""

import numpy as np
import pytest

from openinfer_contract import Grammar, TokenLogprobs, pack_floats, pack_ids, unpack_ids
from openinfer_scheduler import StepResult


def counts_of(plan, *counts):
    """Returns a result with `counts[i]` tokens of id 1 for row i."""
    return StepResult(
        step_id=plan.step_id,
        counts=np.array(counts, np.int32),
        token_ids=np.full(sum(counts), 1, np.uint32),
    )


def apply(subject, result):
    return subject.take(subject.scheduler.apply(result, subject.now))


def planned(subject):
    return subject.scheduler.plan(subject.now)


def test_drafts_are_planned_as_if_accepted_and_settled_as_counted(loop):
    subject = loop(num_draft_tokens=3, max_num_batched_tokens=32, num_blocks=300)
    subject.add([1, 2, 3, 4, 5], max_tokens=30, ignore_eos=True)
    prefill, first = planned(subject), planned(subject)
    assert (prefill.rows[0].num_drafts, prefill.rows[0].num_tokens) == (0, 5)
    assert (first.rows[0].num_drafts, first.rows[0].num_tokens) == (3, 4)
    assert first.num_tokens == 4
    tenancy = subject.scheduler._state.running[0].tenancy
    assert tenancy.num_planned == 9
    apply(subject, counts_of(prefill, 1))
    second = planned(subject)
    assert tenancy.num_planned == 13
    ((_, event),) = apply(subject, counts_of(first, 2))
    assert event.num_tokens == 2
    assert tenancy.num_planned == 11, "two of four positions are forwarded again"
    apply(subject, counts_of(second, 4))
    assert tenancy.num_planned == 11
    assert tenancy.sequence.num_output_tokens == 7
    subject.abort("r0")
    apply(subject, counts_of(planned(subject)))
    subject.check_idle()


def test_no_position_beyond_the_length_is_planned(loop):
    subject = loop(num_draft_tokens=3, max_num_batched_tokens=32, num_blocks=300, depth=1)
    subject.add([1, 2, 3], max_tokens=7, ignore_eos=True)
    sizes = []
    for accepted in (1, 2, 1, 1, 1, 1):
        plan = planned(subject)
        sizes.append(plan.rows[0].num_tokens)
        apply(subject, counts_of(plan, accepted))
    # 8 positions are forwarded in all; the ninth token is the last and never forwarded.
    assert sizes == [3, 4, 4, 3, 2, 1]
    assert subject.ends["r0"].reason == "length"
    assert subject.ends["r0"].num_output_tokens == 7


def test_tokens_after_a_stop_are_dropped(loop, eos):
    subject = loop(num_draft_tokens=3, max_num_batched_tokens=32, num_blocks=300, depth=1)
    subject.add([1, 2, 3], max_tokens=9)
    apply(subject, counts_of(planned(subject), 1))
    plan = planned(subject)
    logprobs = TokenLogprobs(sampled=pack_floats([-1.0, -2.0, -3.0]), ranks=pack_ids([1, 2, 3]))
    result = StepResult(
        step_id=plan.step_id,
        counts=np.array([3], np.int32),
        token_ids=np.array([5, eos, 6], np.uint32),
        logprobs={0: logprobs},
    )
    ((_, event),) = apply(subject, result)
    assert unpack_ids(event.token_ids) == [5, eos]
    assert (event.end.reason, event.end.stop_token_id) == ("stop", eos)
    assert event.end.num_output_tokens == 3
    assert unpack_ids(event.logprobs.ranks) == [1, 2]
    assert subject.scheduler.load().num_output_tokens == 3


@pytest.mark.parametrize("counts", [0, 5])
def test_an_impossible_token_count_is_refused(loop, counts):
    subject = loop(num_draft_tokens=3, max_num_batched_tokens=32, depth=1)
    subject.add([1, 2, 3])
    apply(subject, counts_of(planned(subject), 1))
    with pytest.raises(ValueError, match="3 drafts"):
        subject.scheduler.apply(counts_of(planned(subject), counts), subject.now)


def test_requests_that_decline_or_need_a_mask_have_no_drafts(loop):
    subject = loop(num_draft_tokens=2, max_num_batched_tokens=32, num_blocks=300)
    subject.add([1, 2], request_id="default")
    subject.add([3, 4], request_id="declines", speculate=False)
    subject.add([5, 6], request_id="masked", grammar=Grammar(kind="json_object"))
    prefill = subject.plan()
    assert [row.needs_mask for row in prefill.rows] == [False, False, True]
    decode = subject.plan()
    seen = {row.slot: (row.num_drafts, row.needs_mask) for row in decode.rows}
    assert seen == {0: (2, False), 1: (0, False), 2: (0, True)}
    subject.run()


@pytest.mark.parametrize(
    "sampling",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"bad_words": (pack_ids([3, 4]),)},
    ],
)
def test_requests_whose_scores_depend_on_output_have_no_drafts(loop, sampling):
    """The drafts before a position would have to be counted, and they may be rejected."""
    subject = loop(num_draft_tokens=2, max_num_batched_tokens=32, num_blocks=300)
    subject.add([1, 2], sampling=sampling)
    subject.add([3, 4], sampling={"logit_bias": ((5, 1.0),), "temperature": 0.5})
    subject.plan()
    assert {row.slot: row.num_drafts for row in subject.plan().rows} == {0: 0, 1: 2}
    subject.run()


def test_a_chunk_before_the_last_needs_no_mask(loop):
    subject = loop(max_chunk_tokens=4)
    subject.add(range(6), grammar=Grammar(kind="json_object"), max_tokens=2)
    assert [row.needs_mask for row in subject.plan().rows] == [False]
    assert [row.needs_mask for row in subject.plan().rows] == [True]
    subject.run()


def test_no_sequence_is_preempted_for_drafts(loop):
    subject = loop(
        num_draft_tokens=3, max_num_batched_tokens=64, num_blocks=6, max_model_len=24,
        watermark=0.0, depth=1,
    )  # fmt: skip
    subject.add([1] * 11, max_tokens=13, ignore_eos=True)
    subject.add([2] * 12, max_tokens=4, ignore_eos=True)
    subject.step()
    plan = subject.plan()
    # Row 0 has room for one position and row 1 for none; neither is preempted for drafts.
    assert {row.slot: row.num_drafts for row in plan.rows} == {0: 0}
    assert subject.scheduler.load().num_preemptions == 0
    subject.run()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_crowds_with_drafts_in_a_tiny_pool(loop, depth):
    subject = loop(
        num_draft_tokens=2, num_blocks=10, tokens_per_block=2, max_model_len=20, max_num_seqs=6,
        max_num_batched_tokens=24, depth=depth,
    )  # fmt: skip
    for number in range(30):
        subject.add([number % 3] * (1 + number % 7), max_tokens=1 + number % 11)
    subject.run()
    assert subject.scheduler.load().num_preemptions > 0
    executor = subject.executor
    assert 0.3 < executor.num_accepted / executor.num_drafted < 0.9, "both occur"
