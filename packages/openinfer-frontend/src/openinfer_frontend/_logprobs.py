"""OpenAI's two spellings of logprobs, from the contract's columns."""

from collections.abc import Callable, Sequence

from openinfer_contract import TokenLogprobs, unpack_floats, unpack_ids
from openinfer_text import Tokenizer

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""

Alternatives = Sequence[tuple[int, float]]


class TokenNames:
    """How tokens are spelled in logprobs."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        """Spells tokens by their text, or as `token_id:N`."""
        self._tokenizer = tokenizer
        self.name: Callable[[int], str] = _id_name if as_ids else tokenizer.token_text

    def chat_entry(self, token_id: int, logprob: float) -> dict[str, object]:
        """One token as chat completions spell it."""
        return {
            "token": self.name(token_id),
            "logprob": max(logprob, LOWEST_LOGPROB),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _positions(
    token_ids: Sequence[int], logprobs: TokenLogprobs
) -> list[tuple[int, float, Alternatives]]:
    """Per token: its id, its logprob, and the most likely ones."""
    sampled = unpack_floats(logprobs.sampled)
    ids, values = unpack_ids(logprobs.top_ids), unpack_floats(logprobs.top)
    k = logprobs.num_top
    return [
        (
            token_id,
            sampled[i],
            list(zip(ids[i * k : (i + 1) * k], values[i * k : (i + 1) * k], strict=True)),
        )
        for i, token_id in enumerate(token_ids)
    ]


def chat_logprobs(
    names: TokenNames, token_ids: Sequence[int], logprobs: TokenLogprobs
) -> dict[str, object]:
    """`choices[].logprobs` of chat completions."""
    content = []
    for token_id, logprob, top in _positions(token_ids, logprobs):
        entry = names.chat_entry(token_id, logprob)
        entry["top_logprobs"] = [names.chat_entry(*alternative) for alternative in top]
        content.append(entry)
    return {"content": content}


class CompletionLogprobs:
    """`choices[].logprobs` of completions; counts the offsets of one choice's tokens."""

    def __init__(self, names: TokenNames, *, first_offset: int) -> None:
        """Starts at a character offset: the length of an echoed prompt, else 0."""
        self._names = names
        self._offset = first_offset

    def take(self, token_ids: Sequence[int], logprobs: TokenLogprobs) -> dict[str, object]:
        """The object for the next tokens."""
        offsets, values, tokens, tops = [], [], [], []
        for token_id, logprob, top in _positions(token_ids, logprobs):
            name = self._names.name(token_id)
            value = max(logprob, LOWEST_LOGPROB)
            named: dict[str, float] = {}
            for other, other_value in [*top, (token_id, logprob)]:
                # Two tokens may share a spelling; the likelier one stands.
                named.setdefault(self._names.name(other), max(other_value, LOWEST_LOGPROB))
            offsets.append(self._offset)
            values.append(value)
            tokens.append(name)
            tops.append(named)
            self._offset += len(name)
        return {
            "text_offset": offsets,
            "token_logprobs": values,
            "tokens": tokens,
            "top_logprobs": tops,
        }
