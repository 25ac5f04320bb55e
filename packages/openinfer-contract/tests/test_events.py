import itertools
from collections.abc import Callable

import pytest

from openinfer_contract import (
    Failed,
    Finished,
    KvTransfer,
    PromptLogprobs,
    Rejected,
    Scheduled,
    StepEvents,
    StreamOrderError,
    StreamState,
    TokenEvent,
    TokenLogprobs,
    pack_floats,
    pack_ids,
    unpack_ids,
)


def logprobs(*values: float) -> TokenLogprobs:
    n = len(values)
    return TokenLogprobs(
        sampled=pack_floats(values),
        ranks=pack_ids([1] * n),
        num_top=2,
        top_ids=pack_ids([4, 5] * n),
        top=pack_floats([-0.1, -0.2] * n),
        by_id=pack_floats([-3.0] * n),
    )


SCHEDULED = TokenEvent(scheduled=Scheduled(num_prompt_tokens=3, queue_s=0.5))
TOKENS = TokenEvent(token_ids=pack_ids([1, 2]), logprobs=logprobs(-0.5, -0.25))
MORE = TokenEvent(token_ids=pack_ids([3]), logprobs=logprobs(-1.0))
PROMPT = TokenEvent(prompt_logprobs=PromptLogprobs(start=1, logprobs=logprobs(-2.0)))
TRANSFER = TokenEvent(kv_transfer=KvTransfer(b"where"))
FINISHED = TokenEvent(end=Finished(reason="stop", stop_token_id=3, num_output_tokens=3))
LAST = TokenEvent(token_ids=pack_ids([9]), logprobs=logprobs(-9.0), end=FINISHED.end)
FAILED = TokenEvent(end=Failed(message="gone", is_retryable=True))
REJECTED = TokenEvent(end=Rejected(kind="overloaded", message="full", retry_after_s=1.0))
EMPTY = TokenEvent()


@pytest.mark.parametrize(
    "events",
    [
        [REJECTED],
        [FINISHED],
        [FAILED],
        [SCHEDULED, FINISHED],
        [SCHEDULED, TOKENS, MORE, FINISHED],
        [SCHEDULED, PROMPT, TOKENS, TRANSFER, LAST],
        [TOKENS, FAILED],
        [SCHEDULED.merged(TOKENS), MORE.merged(FINISHED)],
        [SCHEDULED.merged(TOKENS).merged(LAST)],
    ],
)
def test_streams_of_the_grammar_pass(events: list[TokenEvent]) -> None:
    state = StreamState("r")
    for event in events:
        assert not state.is_ended
        state.advance(event)
    assert state.is_ended


@pytest.mark.parametrize(
    "events",
    [
        [EMPTY],
        [SCHEDULED, EMPTY],
        [SCHEDULED, SCHEDULED],
        [TOKENS, SCHEDULED],
        [SCHEDULED, REJECTED],
        [TOKENS, REJECTED],
        [SCHEDULED.merged(REJECTED)],
        [TOKENS.merged(REJECTED)],
        [REJECTED, REJECTED],
        [FINISHED, FINISHED],
        [FINISHED, FAILED],
        [LAST, TOKENS],
        [FAILED, SCHEDULED],
        [FINISHED, EMPTY],
    ],
)
def test_breaches_raise_and_name_the_request(events: list[TokenEvent]) -> None:
    state = StreamState("the-id")
    for event in events[:-1]:
        state.advance(event)
    with pytest.raises(StreamOrderError, match="the-id"):
        state.advance(events[-1])


STREAM = [SCHEDULED, PROMPT, TOKENS, MORE, TRANSFER, LAST]


def _merge(events: list[TokenEvent]) -> TokenEvent:
    merged = events[0]
    for event in events[1:]:
        merged = merged.merged(event)
    return merged


def test_merging_is_the_same_however_it_is_grouped() -> None:
    whole = _merge(STREAM)
    for cuts in itertools.product([False, True], repeat=len(STREAM) - 1):
        groups = [[STREAM[0]]]
        for event, is_cut in zip(STREAM[1:], cuts, strict=True):
            groups.append([event]) if is_cut else groups[-1].append(event)
        assert _merge([_merge(group) for group in groups]) == whole


def test_merging_keeps_everything_in_order() -> None:
    merged = _merge(STREAM)
    assert unpack_ids(merged.token_ids) == [1, 2, 3, 9]
    assert merged.num_tokens == 4
    assert merged.logprobs is not None
    assert merged.logprobs.sampled == pack_floats([-0.5, -0.25, -1.0, -9.0])
    assert len(merged.logprobs.top_ids) == 4 * 2 * 4
    assert len(merged.logprobs.by_id) == 4 * 4
    assert merged.scheduled == SCHEDULED.scheduled
    assert merged.prompt_logprobs == PROMPT.prompt_logprobs
    assert merged.kv_transfer == KvTransfer(b"where")
    assert merged.end == FINISHED.end


def test_merged_prompt_logprobs_keep_their_start() -> None:
    later = TokenEvent(prompt_logprobs=PromptLogprobs(start=2, logprobs=logprobs(-3.0)))
    merged = PROMPT.merged(later).prompt_logprobs
    assert merged is not None
    assert (merged.start, merged.logprobs.sampled) == (1, pack_floats([-2.0, -3.0]))


def test_the_newest_weights_version_wins() -> None:
    later = TokenEvent(token_ids=pack_ids([1]), weights_version=4)
    assert TOKENS.merged(later).weights_version == 4


def test_rows_survive_columns() -> None:
    rows = [
        (7, SCHEDULED),
        (2**32 - 1, TOKENS),
        (0, LAST),
        (5, REJECTED),
        (6, PROMPT),
        (8, TRANSFER),
    ]
    step = StepEvents.from_rows(3, 0, rows)
    assert list(step.rows()) == rows
    assert (step.step_id, unpack_ids(step.num_tokens)) == (3, [0, 2, 1, 0, 0, 0])


def test_no_rows_are_no_rows() -> None:
    assert list(StepEvents.from_rows(1, 0, []).rows()) == []


def test_weights_version_reaches_every_row() -> None:
    step = StepEvents.from_rows(1, 9, [(1, TOKENS), (2, MORE)])
    assert [event.weights_version for _, event in step.rows()] == [9, 9]


@pytest.mark.parametrize("make", [lambda: TOKENS, lambda: LAST])
def test_events_are_values(make: Callable[[], TokenEvent]) -> None:
    with pytest.raises(AttributeError):
        make().token_ids = b""  # type: ignore[misc]
