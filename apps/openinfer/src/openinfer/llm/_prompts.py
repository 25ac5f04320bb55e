"""The arguments of `LLM` as lists: prompts or conversations, and parameters for each."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from openinfer.errors import RequestRejected
from openinfer.llm._sampling_params import SamplingParams

AskedParams = SamplingParams | Sequence[SamplingParams] | None


def prompts_of(given: Any) -> list[Any]:
    """Returns one prompt or several as a list. Their contents are checked when they are encoded.

    Raises:
        RequestRejected: `given` is neither.
    """
    # Integral, not int: ids also come from numpy arrays.
    if isinstance(given, str) or (_is_row(given) and len(given) and isinstance(given[0], Integral)):
        return [given]
    if not _is_row(given):
        what = "a text, a list of token ids, or a list of these"
        raise RequestRejected(f"prompts must be {what}, not {_kind(given)}", "prompts")
    return list(given)


def check_prompt(prompt: Any) -> None:
    """Checks that a prompt is a text or token ids, and not empty.

    Raises:
        RequestRejected: it is not.
    """
    if not isinstance(prompt, str) and not _is_row(prompt):
        message = f"a prompt must be a text or a list of token ids, not {_kind(prompt)}"
        raise RequestRejected(message, "prompt")
    if len(prompt) == 0:
        message = "the prompt is empty; give it a text or at least one token id"
        raise RequestRejected(message, "prompt_token_ids")
    if isinstance(prompt, str):
        return
    for position, token_id in enumerate(prompt):
        if not isinstance(token_id, Integral):
            message = f"a token id must be an integer; at position {position} is {token_id!r:.40}"
            raise RequestRejected(message, "prompt_token_ids")


def conversations_of(given: Any) -> list[Any]:
    """Returns one conversation or several as a list. Messages are checked when they are encoded.

    Raises:
        RequestRejected: `given` is neither.
    """
    is_one = _is_row(given) and len(given) > 0 and isinstance(given[0], Mapping)
    batch = [given] if is_one else given
    if not _is_row(batch) or not all(map(_is_row, batch)):
        message = "conversations must be a list of messages, or a list of such lists"
        raise RequestRejected(message, "conversations")
    return list(batch)


def params_of(
    given: AskedParams, num_prompts: int, default: SamplingParams
) -> list[SamplingParams]:
    """Returns the parameters of each prompt.

    Raises:
        RequestRejected: `given` has the wrong type, or its length is not the number of prompts.
    """
    given = default if given is None else given
    if isinstance(given, SamplingParams):
        return [given] * num_prompts
    if not _is_row(given) or not all(isinstance(params, SamplingParams) for params in given):
        message = "params must be SamplingParams, or a list with one of them for each prompt"
        raise RequestRejected(message, "params")
    if len(given) != num_prompts:
        message = f"params must be one or as many as prompts: {len(given)} for {num_prompts}"
        raise RequestRejected(message, "params")
    return list(given)


def _is_row(given: Any) -> bool:
    """Returns whether it is list-like: numpy arrays are; texts, bytes and mappings are not."""
    if isinstance(given, str | bytes | bytearray | Mapping):
        return False
    return hasattr(given, "__len__") and hasattr(given, "__getitem__")


def _kind(given: Any) -> str:
    return "None" if given is None else type(given).__name__
