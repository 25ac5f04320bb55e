"""A call's result, cut to what the model's context has room for."""

from collections.abc import Callable

ANSWER_TOKENS = 128
"""Tokens that a result leaves to the answer, or half of what there is if that is less."""

_REMARK = "[cut off here: the context has no room for more]"
_PRECISION = 16


def fit_result(
    result: str, num_left: Callable[[str], int | None], *, num_results: int = 1
) -> tuple[str, int]:
    """The result, or as much of its beginning as leaves room for an answer.

    Args:
        result: what a call gave.
        num_left: tokens of the context behind a conversation that ends in a result; negative
            where it has more than the context, None where that is not known.
        num_results: results that the room is for, this one and those of calls that still wait.

    Returns:
        What the model shall read, and how many characters of the result are in it: all of them
        where the room is not known.
    """
    left = num_left(result)
    most = None if left is None else num_left(_REMARK)
    if left is None or most is None:
        return result, len(result)
    room = max(0, most)
    wanted = room - (room - min(ANSWER_TOKENS, room // 2)) // num_results
    if left >= wanted:
        return result, len(result)
    fits, does_not = 0, len(result)
    while does_not - fits > _PRECISION:
        middle = (fits + does_not) // 2
        left = num_left(_cut(result, middle))
        if left is not None and left >= wanted:
            fits = middle
        else:
            does_not = middle
    return _cut(result, fits), fits


def _cut(result: str, num_chars: int) -> str:
    return f"{result[:num_chars]}\n{_REMARK}" if num_chars else _REMARK
