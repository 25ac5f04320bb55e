"""The part of a step's prompt logprobs that the client has not received yet."""

from openinfer_contract import PromptLogprobs, TokenLogprobs, num_ids
from openinfer_scheduler.state._sequence import SequenceState


def owed_prompt_logprobs(
    sequence: SequenceState, position: int, logprobs: TokenLogprobs
) -> PromptLogprobs | None:
    """Returns the part of a chunk's prompt logprobs that was not delivered before a preemption.

    Args:
        sequence: its `prompt_logprobs_from` is advanced, to None at the end of the prompt.
        position: first position that the chunk forwarded; its logits score the token after it.
        logprobs: consecutive tokens from `max(position + 1, start)` on.
    """
    options, owed = sequence.request.prompt_logprobs, sequence.prompt_logprobs_from
    if options is None or owed is None:
        return None
    start = max(position + 1, options.start)
    end = start + num_ids(logprobs.sampled)
    sequence.prompt_logprobs_from = end if end < sequence.request.num_prompt_tokens else None
    if end <= owed:
        sequence.prompt_logprobs_from = owed
        return None
    return PromptLogprobs(start=max(start, owed), logprobs=_without(logprobs, max(0, owed - start)))


def first_logprobs(logprobs: TokenLogprobs, num: int) -> TokenLogprobs:
    """Returns the columns of the first `num` tokens."""
    return _columns(logprobs, 0, num)


def _without(logprobs: TokenLogprobs, num: int) -> TokenLogprobs:
    """Returns the columns without their first `num` tokens."""
    return _columns(logprobs, num, num_ids(logprobs.sampled)) if num else logprobs


def _columns(logprobs: TokenLogprobs, start: int, stop: int) -> TokenLogprobs:
    total = num_ids(logprobs.sampled)

    def part(column: bytes) -> bytes:
        width = len(column) // total
        return column[width * start : width * stop]

    return TokenLogprobs(
        sampled=part(logprobs.sampled),
        ranks=part(logprobs.ranks),
        num_top=logprobs.num_top,
        top_ids=part(logprobs.top_ids),
        top=part(logprobs.top),
        by_id=part(logprobs.by_id),
    )
