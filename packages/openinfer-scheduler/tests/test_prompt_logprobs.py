import pytest

from openinfer_contract import (
    GenerateRequest,
    PromptLogprobOptions,
    StopRules,
    TokenLogprobs,
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from openinfer_scheduler.settle._prompt_logprobs import owed_prompt_logprobs
from openinfer_scheduler.state._sequence import SequenceState


def sequence(start, num_prompt=10):
    request = GenerateRequest(
        request_id="r",
        prompt_token_ids=pack_ids(range(num_prompt)),
        stop=StopRules(max_tokens=4),
        prompt_logprobs=PromptLogprobOptions(num_top=2, start=start),
    )
    return SequenceState(
        request, arrival=0.0, arrival_index=0, seed=0, max_total=14, stop_ids=frozenset()
    )


def columns(begin, end):
    positions = range(begin, end)
    return TokenLogprobs(
        sampled=pack_floats(map(float, positions)),
        ranks=pack_ids(positions),
        num_top=2,
        top_ids=pack_ids(n for p in positions for n in (p, p)),
        top=pack_floats(float(n) for p in positions for n in (p, p)),
        by_id=pack_floats(map(float, positions)),
    )


def positions(event):
    sampled = [int(v) for v in unpack_floats(event.logprobs.sampled)]
    assert unpack_ids(event.logprobs.ranks) == sampled
    assert unpack_ids(event.logprobs.top_ids) == [n for p in sampled for n in (p, p)]
    assert event.start == sampled[0]
    return sampled


def test_chunks_follow_each_other():
    subject = sequence(start=0)
    assert positions(owed_prompt_logprobs(subject, 0, columns(1, 5))) == [1, 2, 3, 4]
    assert positions(owed_prompt_logprobs(subject, 4, columns(5, 10))) == [5, 6, 7, 8, 9]
    assert subject.prompt_logprobs_from is None


def test_prompt_logprobs_begin_at_start():
    subject = sequence(start=6)
    assert positions(owed_prompt_logprobs(subject, 4, columns(6, 10))) == [6, 7, 8, 9]


def test_logprobs_delivered_before_a_preemption_are_not_repeated():
    subject = sequence(start=0)
    owed_prompt_logprobs(subject, 0, columns(1, 5))
    assert owed_prompt_logprobs(subject, 0, columns(1, 4)) is None
    assert positions(owed_prompt_logprobs(subject, 3, columns(4, 8))) == [5, 6, 7]
    assert positions(owed_prompt_logprobs(subject, 7, columns(8, 10))) == [8, 9]
    assert owed_prompt_logprobs(subject, 0, columns(1, 10)) is None


@pytest.mark.parametrize(("start", "num_cached"), [(0, 0), (3, 2), (4, 2), (5, 4), (6, 4), (7, 6)])
def test_tokens_whose_logprobs_are_owed_are_forwarded_although_cached(loop, start, num_cached):
    """The logits that score the first owed token are those of the position before."""
    subject = loop(tokens_per_block=2)
    subject.add([1, 2, 3, 4, 5, 6, 7])
    subject.run()
    subject.add([1, 2, 3, 4, 5, 6, 7], prompt_logprobs=PromptLogprobOptions(start=start))
    (admitted,) = subject.scheduler.plan(subject.now).starts
    assert admitted.num_cached_tokens == num_cached
