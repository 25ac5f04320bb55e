"""Output that nothing had to be sampled for: what a grammar leaves no choice about."""

from openinfer_contract import End, TokenEvent
from openinfer_scheduler._lookahead import max_chunk_tokens
from openinfer_scheduler.state._prefix_probe import BYTES_PER_ID
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState


def force(
    state: SchedulerState, sequence: SequenceState, token_ids: bytes, now: float
) -> TokenEvent | None:
    """Appends tokens to a running sequence; they are forwarded together by its next row.

    What rows in flight sample for it is surplus from here on.

    Returns:
        The tokens taken, up to one that ends the request, and that end; None: it is not running
        now, or has more rows in flight than tokens given.
    """
    stay = sequence.stay
    if stay is None or not stay.is_open:
        return None
    if any(group.kind == "window" for group in state.cache.groups):
        # Blocks behind a window leave as tokens are settled, which is when one is sampled behind
        # the forced ones: no more of these than a chunk, which the window's room is made for.
        token_ids = token_ids[: BYTES_PER_ID * max_chunk_tokens(state.config)]
    # Rows in flight have to fall on forced tokens: what they sample behind those would count.
    if stay.num_planned - (sequence.num_known_tokens - 1) > len(token_ids) // BYTES_PER_ID:
        return None
    end: End | None = None
    num_taken = 0
    for begin in range(0, len(token_ids), BYTES_PER_ID):
        column = token_ids[begin : begin + BYTES_PER_ID]
        sequence.tokens += column
        num_taken += 1
        token_id = int.from_bytes(column, "little")
        num_known = sequence.num_known_tokens
        stay.num_unforwarded += 1
        if token_id in sequence.stop_ids and num_known > sequence.stop_from:
            end = state.finish(sequence, "stop", now, stop_token_id=token_id)
        elif num_known >= sequence.max_total:
            end = state.finish(sequence, "length", now)
        if end is not None:
            break
    if end is None:
        stay.take_as_given(state.last_completed)
        state.num_changes += 1
    state.counters.num_output_tokens += num_taken
    return TokenEvent(token_ids=token_ids[: BYTES_PER_ID * num_taken], end=end)
