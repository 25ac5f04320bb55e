import numpy as np
import pytest

from openinfer_contract import (
    Failed,
    PromptLogprobOptions,
    PromptLogprobs,
    TokenLogprobs,
    pack_floats,
    pack_ids,
    unpack_ids,
)
from openinfer_scheduler import StepResult


def result(plan, *token_ids, **fields):
    """Returns a result with these ids for the plan's sampled rows."""
    return StepResult(
        step_id=plan.step_id,
        counts=np.array([row.is_sampled for row in plan.rows], np.int32),
        token_ids=np.array(token_ids, np.uint32),
        **fields,
    )


class Script:
    """Runs requests and samples the ids that a test gives."""

    def __init__(self, loop, **options):
        self.loop = loop(**options)
        self.scheduler = self.loop.scheduler

    def feed(self, *token_ids, **fields):
        plan = self.scheduler.plan(self.loop.now)
        return self.loop.take(
            self.scheduler.apply(result(plan, *token_ids, **fields), self.loop.now)
        )


@pytest.fixture
def script(loop):
    return Script(loop)


def end_of(script, ids, **request):
    script.loop.add([1, 2, 3], **request)
    for count, token_id in enumerate(ids, 1):
        ((_, event),) = script.feed(token_id)
        assert unpack_ids(event.token_ids) == [token_id]
        if event.end is not None:
            assert count == len(ids)
            assert event.end.num_output_tokens == count + request.get("num_output_prefix", 0)
            return event.end.reason, event.end.stop_token_id
    return None


def test_eos_stops_and_is_delivered(script, eos):
    assert end_of(script, [5, eos]) == ("stop", eos)


def test_eos_ignored(script, eos):
    assert end_of(script, [eos, eos, eos], max_tokens=3, ignore_eos=True) == ("length", None)


def test_explicit_stop_ids_stop_even_where_eos_is_ignored(script, eos):
    request = {"stop_token_ids": (7, eos), "ignore_eos": True}
    assert end_of(script, [5, eos], **request) == ("stop", eos)
    assert end_of(script, [5, 7], **request) == ("stop", 7)


def test_no_stop_before_min_tokens(script, eos):
    assert end_of(script, [eos, eos, 4], min_tokens=2, max_tokens=8) is None


def test_stop_right_after_min_tokens(script, eos):
    assert end_of(script, [4, 4, eos], min_tokens=2, max_tokens=8) == ("stop", eos)


def test_min_tokens_count_the_output_prefix(script, eos):
    assert end_of(script, [4, eos], min_tokens=3, max_tokens=8, num_output_prefix=2) == (
        "stop",
        eos,
    )


def test_max_tokens_count_the_output_prefix(script):
    assert end_of(script, [4, 4], max_tokens=4, num_output_prefix=2) == ("length", None)


def test_stop_wins_over_length(script, eos):
    assert end_of(script, [4, eos], max_tokens=2) == ("stop", eos)


def test_max_model_len_is_a_length_end(loop):
    assert end_of(Script(loop, max_model_len=6), [4, 4, 4], max_tokens=50) == ("length", None)


def test_the_surplus_token_of_a_stopped_row_is_dropped(loop, eos):
    subject = loop()
    subject.add([1, 2, 3])
    first, second = subject.scheduler.plan(0.0), subject.scheduler.plan(0.0)
    subject.take(subject.scheduler.apply(result(first, eos), 0.0))
    used = subject.cache.stats().num_used
    assert used == 1, "the step in flight still writes there"
    assert subject.scheduler.apply(result(second, 9), 0.0) == []
    assert subject.cache.stats().num_used == 0
    assert subject.output["r0"] == [eos]
    assert subject.scheduler.load().num_output_tokens == 1


def test_scheduled_comes_once_with_the_first_effect(loop):
    subject = Script(loop, max_chunk_tokens=2)
    subject.loop.add([1, 2, 3, 4, 5], max_tokens=2, arrival=subject.loop.now - 2.0)
    ((_, first),) = subject.feed()
    assert first.scheduled.num_prompt_tokens == 5
    assert first.scheduled.queue_s == pytest.approx(2.0)
    assert subject.feed() == []
    ((_, event),) = subject.feed(8)
    assert event.scheduled is None


def test_timings(loop):
    subject = Script(loop)
    subject.loop.add([1, 2, 3], max_tokens=2)
    subject.loop.now += 1
    plan = subject.scheduler.plan(subject.loop.now)
    subject.loop.now += 2
    subject.loop.take(subject.scheduler.apply(result(plan, 5), subject.loop.now))
    subject.loop.now += 4
    subject.feed(6)
    timings = subject.loop.ends["r0"].timings
    assert (timings.queue_s, timings.prefill_s, timings.decode_s) == pytest.approx((1, 2, 4))


def test_logprobs_reach_their_row(loop):
    subject = Script(loop)
    subject.loop.add([1, 2, 3])
    subject.loop.add([4, 5, 6])
    subject.feed(7, 8)
    logprobs = TokenLogprobs(sampled=pack_floats([-1.0]), ranks=pack_ids([1]))
    effects = dict(subject.feed(9, 10, logprobs={1: logprobs}))
    assert effects["r0"].logprobs is None
    assert effects["r1"].logprobs == logprobs
    assert unpack_ids(effects["r1"].token_ids) == [10]


def test_prompt_logprobs_know_their_positions(loop):
    subject = Script(loop, max_chunk_tokens=3)
    subject.loop.add([1, 2, 3, 4, 5], prompt_logprobs=PromptLogprobOptions())

    def columns(num):
        return TokenLogprobs(sampled=pack_floats([0.0] * num), ranks=pack_ids([1] * num))

    ((_, event),) = subject.feed(prompt_logprobs={0: columns(3)})
    assert event.prompt_logprobs.start == 1
    ((_, event),) = subject.feed(8, prompt_logprobs={0: columns(1)})
    assert event.prompt_logprobs.start == 4


def test_prompt_logprobs_of_a_recomputed_prompt_are_dropped(loop):
    subject = Script(loop, has_prefix_cache=False, num_blocks=4, tokens_per_block=2)
    columns = TokenLogprobs(sampled=pack_floats([0.0] * 2), ranks=pack_ids([1] * 2))
    subject.loop.add([4, 5, 6], max_tokens=4)
    subject.loop.add([1, 2, 3], prompt_logprobs=PromptLogprobOptions(), max_tokens=4)
    num_starts, told = 0, []
    while "r1" not in subject.loop.ends:
        plan = subject.scheduler.plan(subject.loop.now)
        scored = {}
        for start in plan.starts:
            if start.request.request_id == "r1":
                num_starts += 1
                row = next(i for i, row in enumerate(plan.rows) if row.slot == start.slot)
                scored[row] = columns
        outcome = result(plan, *[9] * len(plan.rows), prompt_logprobs=scored)
        effects = subject.loop.take(subject.scheduler.apply(outcome, subject.loop.now))
        told += [event.prompt_logprobs for _, event in effects if event.prompt_logprobs]
    assert num_starts == 2
    assert told == [PromptLogprobs(start=1, logprobs=columns)]


def test_a_failed_row_fails_alone(loop):
    subject = loop()
    subject.add([1, 2, 3])
    subject.add([4, 5, 6])
    plan = subject.scheduler.plan(0.0)
    effects = subject.scheduler.apply(
        StepResult(
            step_id=plan.step_id,
            counts=np.array([0, 1], np.int32),
            token_ids=np.array([8], np.uint32),
            failed={0: "NaN logits"},
        ),
        0.0,
    )
    ends = {request_id: event.end for request_id, event in effects}
    assert isinstance(ends["r0"], Failed)
    assert ends["r0"].message == "NaN logits"
    assert ends["r1"] is None


def _failed(plan, failed, exhausted=()):
    """Returns a result in which every row failed."""
    return StepResult(
        step_id=plan.step_id,
        counts=np.zeros(len(plan.rows), np.int32),
        token_ids=np.zeros(0, np.uint32),
        failed=failed,
        exhausted=frozenset(exhausted),
    )


def test_blocks_of_a_failed_row_are_not_hit(loop):
    subject = loop(tokens_per_block=2)
    prompt = [1, 2, 3, 4, 5]
    subject.add(prompt)
    plan = subject.scheduler.plan(0.0)
    subject.add(prompt)
    failed = _failed(plan, {0: "NaN logits"})
    subject.scheduler.apply(failed, 0.0)
    (start,) = subject.scheduler.plan(0.0).starts
    assert start.num_cached_tokens == 0


def test_a_request_that_bans_every_token_is_at_fault(loop):
    subject = loop(tokens_per_block=2)
    prompt = [1, 2, 3, 4, 5]
    bans = {"allowed_token_ids": pack_ids([7]), "bad_words": (pack_ids([7, 7]),)}
    subject.add(prompt, sampling=bans)
    plan = subject.scheduler.plan(0.0)
    subject.add(prompt)
    exhausted = _failed(plan, {0: "every token is ruled out"}, exhausted={0})
    ((_, event),) = subject.scheduler.apply(exhausted, 0.0)
    assert event.end.field == "sampling.allowed_token_ids"
    assert event.end.message.endswith("ruled out by allowed_token_ids and bad_words")
    # The model is not at fault, so the prefix cache is kept.
    (start,) = subject.scheduler.plan(0.0).starts
    assert start.num_cached_tokens == 4


def test_a_model_without_a_valid_token_is_at_fault(loop):
    subject = loop(tokens_per_block=2)
    prompt = [1, 2, 3, 4, 5]
    subject.add(prompt)
    plan = subject.scheduler.plan(0.0)
    subject.add(prompt)
    exhausted = _failed(plan, {0: "every token is ruled out"}, exhausted={0})
    ((_, event),) = subject.scheduler.apply(exhausted, 0.0)
    assert (event.end.field, event.end.message) == ("", "every token is ruled out")
    (start,) = subject.scheduler.plan(0.0).starts
    assert start.num_cached_tokens == 0


def test_a_request_at_fault_does_not_excuse_another_row(loop):
    subject = loop(tokens_per_block=2)
    prompt = [1, 2, 3, 4, 5]
    subject.add(prompt, min_tokens=2)
    subject.add([6, 7, 8])
    plan = subject.scheduler.plan(0.0)
    subject.add(prompt)
    outcome = _failed(plan, {0: "every token is ruled out", 1: "NaN"}, exhausted={0})
    ends = [event.end for _, event in subject.scheduler.apply(outcome, 0.0)]
    assert [end.field for end in ends] == ["stop.min_tokens", ""]
    (start,) = subject.scheduler.plan(0.0).starts
    assert start.num_cached_tokens == 0


@pytest.mark.parametrize(
    ("counts", "ids"), [([1], [5]), ([1, 1], [5]), ([0, 1], [5]), ([2, 0], [5, 6])]
)
def test_a_result_that_does_not_fit_the_plan(loop, counts, ids):
    subject = loop()
    subject.add([1, 2, 3])
    subject.add([4, 5, 6])
    plan = subject.scheduler.plan(0.0)
    with pytest.raises(ValueError, match=r"rows|row"):
        subject.scheduler.apply(
            StepResult(
                step_id=plan.step_id,
                counts=np.array(counts, np.int32),
                token_ids=np.array(ids, np.uint32),
            ),
            0.0,
        )


def test_output_blocks_can_be_hit_by_the_next_turn(loop):
    subject = loop(tokens_per_block=2, num_blocks=60)
    subject.add([1, 2, 3], max_tokens=40, ignore_eos=True)
    subject.run()
    history = [1, 2, 3, *subject.output["r0"]]
    subject.add([*history, 5], max_tokens=2)
    subject.run()
    assert dict(subject.ends["r1"].cached) == {"device": 42}, "43 tokens, the last not forwarded"
