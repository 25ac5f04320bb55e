"""What a step's result does to its sequences: tokens, stops, ends."""

from openinfer_contract import End, PromptLogprobs, TokenEvent
from openinfer_scheduler._plan import StepResult
from openinfer_scheduler._prompt_logprobs import owed_prompt_logprobs
from openinfer_scheduler._sequence import BYTES_PER_ID, Stay
from openinfer_scheduler._state import SchedulerState, StepInFlight

Effects = list[tuple[str, TokenEvent]]
"""(request id, event) in the order they happened; at most one entry a request and call."""


def settle(state: SchedulerState, step: StepInFlight, result: StepResult, now: float) -> Effects:
    """Applies the result of a step that the cache knows to be complete.

    Raises:
        ValueError: the result does not fit the plan.
    """
    token_ids, counts = result.token_ids.tolist(), result.counts.tolist()
    if len(counts) != len(step.stays) or sum(counts) != len(token_ids):
        raise ValueError(
            f"step {result.step_id} has {len(step.stays)} rows; the result has {len(counts)} "
            f"counts that add up to {sum(counts)}, and {len(token_ids)} tokens"
        )
    columns = result.token_ids.astype("<u4", copy=False).view("V4").tolist()
    special = {*result.logprobs, *result.prompt_logprobs, *result.failed}
    effects: Effects = []
    begin = 0
    num_dropped = 0
    for index, (stay, count) in enumerate(zip(step.stays, counts, strict=True)):
        sequence = stay.sequence
        if not stay.is_settling:
            num_dropped += count
        elif count == 1 and sequence.first_token_at is not None and index not in special:
            ids, token_id = columns[begin], token_ids[begin]
            num_known = sequence.num_known_tokens + 1
            if num_known < stay.next_check and token_id not in sequence.stop_ids:
                sequence.tokens += ids
                sequence.num_known_tokens = num_known
                event = TokenEvent(token_ids=ids)
            else:
                end = _take_token(state, stay, ids, token_id, now)
                event = TokenEvent(token_ids=ids, end=end)
            effects.append((sequence.request_id, event))
        else:
            ids = b"".join(columns[begin : begin + count])
            row_event = _settle_row(state, step, index, result, ids, now)
            if row_event is not None:
                effects.append((sequence.request_id, row_event))
        begin += count
    state.counters.num_output_tokens += len(token_ids) - num_dropped
    state.requeue_settled(step.plan.step_id)
    return effects


def _take_token(
    state: SchedulerState, stay: Stay, ids: bytes, token_id: int, now: float
) -> End | None:
    """Appends one sampled token; the terminal event if it was the last."""
    sequence = stay.sequence
    sequence.tokens += ids
    sequence.num_known_tokens = num_known = sequence.num_known_tokens + 1
    if num_known >= stay.next_check and stay.is_open:
        stay.settle_blocks()
    if token_id in sequence.stop_ids and num_known > sequence.stop_from:
        return state.finish(sequence, "stop", now, stop_token_id=token_id)
    if num_known >= sequence.max_total:
        return state.finish(sequence, "length", now)
    return None


def _settle_row(
    state: SchedulerState,
    step: StepInFlight,
    index: int,
    result: StepResult,
    ids: bytes,
    now: float,
) -> TokenEvent | None:
    """One row with anything beside a token; None where there is nothing to tell."""
    stay, row = step.stays[index], step.plan.rows[index]
    sequence = stay.sequence
    scheduled = state.announce(sequence)
    message = result.failed.get(index)
    if message is not None:
        return TokenEvent(
            scheduled=scheduled, end=state.fail(sequence, message, is_retryable=False)
        )
    if len(ids) != BYTES_PER_ID * row.is_sampled:
        raise ValueError(
            f"row {index} of step {step.plan.step_id} has {len(ids) // BYTES_PER_ID} tokens, "
            f"is_sampled is {row.is_sampled}"
        )
    prompt_logprobs: PromptLogprobs | None = None
    if index in result.prompt_logprobs:
        prompt_logprobs = owed_prompt_logprobs(
            sequence, step.prompt_positions[index], result.prompt_logprobs[index]
        )
    end: End | None = None
    if ids:
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        token_id = int.from_bytes(ids, "little")
        end = _take_token(state, stay, ids, token_id, now)
    elif scheduled is None and prompt_logprobs is None:
        return None
    return TokenEvent(
        scheduled=scheduled,
        prompt_logprobs=prompt_logprobs,
        token_ids=ids,
        logprobs=result.logprobs.get(index),
        end=end,
    )
