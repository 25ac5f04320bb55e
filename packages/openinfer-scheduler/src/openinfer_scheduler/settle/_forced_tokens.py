"""Output tokens that are forced instead of sampled, because a grammar allows no others."""

from openinfer_contract import End, TokenEvent
from openinfer_scheduler._lookahead import max_chunk_tokens
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import BYTES_PER_ID, SequenceState


def force(
    state: SchedulerState, sequence: SequenceState, token_ids: bytes, now: float
) -> TokenEvent | None:
    """Appends tokens to a running sequence; its next row forwards them together.

    Samples of its rows in flight are ignored from now on.

    Returns:
        The tokens that were taken, up to one that ends the request, and that end. None if the
        sequence is not running, or has more rows in flight than tokens given.
    """
    tenancy = sequence.tenancy
    if tenancy is None or not tenancy.is_open:
        return None
    if any(group.kind == "window" for group in state.cache.groups):
        # A window's blocks are freed as tokens are settled, and forced tokens are settled when a
        # token is sampled after them. The window has room for one chunk until then.
        token_ids = token_ids[: BYTES_PER_ID * max_chunk_tokens(state.config)]
    # Rows in flight must fall on forced tokens, because samples after those would count.
    if tenancy.num_planned - (sequence.num_known_tokens - 1) > len(token_ids) // BYTES_PER_ID:
        return None
    end: End | None = None
    num_taken = 0
    for begin in range(0, len(token_ids), BYTES_PER_ID):
        column = token_ids[begin : begin + BYTES_PER_ID]
        sequence.tokens += column
        num_taken += 1
        token_id = int.from_bytes(column, "little")
        num_known = sequence.num_known_tokens
        tenancy.num_unforwarded += 1
        if token_id in sequence.stop_ids and num_known > sequence.stop_ids_from:
            end = state.finish(sequence, "stop", now, stop_token_id=token_id)
        elif num_known >= sequence.max_total:
            end = state.finish(sequence, "length", now)
        if end is not None:
            break
    if end is None:
        tenancy.reload_host_tokens(state.last_completed)
    state.counters.num_output_tokens += num_taken
    return TokenEvent(token_ids=token_ids[: BYTES_PER_ID * num_taken], end=end)
