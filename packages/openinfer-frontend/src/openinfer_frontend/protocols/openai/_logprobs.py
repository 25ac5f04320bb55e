"""OpenAI's two formats of logprobs."""

from collections.abc import Callable, Sequence
from typing import Any

from openinfer_contract import TokenLogprobs, unpack_floats, unpack_ids
from openinfer_text import OutputText, Tokenizer

LOWEST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON does not have."""

Alternatives = Sequence[tuple[int, float]]
Columns = dict[str, list[Any]]
"""`choices[].logprobs` of completions."""
PromptEntry = dict[int, dict[str, object]]
"""Logprobs of one prompt token and of its alternatives, by id."""


class TokenNames:
    """The spelling of tokens in logprobs, and the ids whose logprobs are always returned."""

    def __init__(
        self, tokenizer: Tokenizer, *, as_ids: bool, scored_ids: Sequence[int] = ()
    ) -> None:
        """Spells tokens by their text, or as `token_id:N`.

        Args:
            tokenizer: shared, not owned.
            as_ids: whether to spell them as ids.
            scored_ids: ids whose logprobs each output token has, `LogprobOptions.token_ids`.
        """
        self._tokenizer = tokenizer
        self._scored_ids = scored_ids
        self.name: Callable[[int], str] = _id_name if as_ids else tokenizer.token_text

    def positions(
        self, token_ids: Sequence[int], logprobs: TokenLogprobs
    ) -> list[tuple[int, float, Alternatives]]:
        """Returns the id, logprob and alternatives of each output token."""
        rows = _positions(token_ids, logprobs)
        if not self._scored_ids:
            return rows
        values, width = unpack_floats(logprobs.by_id), len(self._scored_ids)
        found: list[tuple[int, float, Alternatives]] = []
        for row, (token_id, logprob, top) in enumerate(rows):
            asked = zip(self._scored_ids, values[row * width : (row + 1) * width], strict=True)
            found.append((token_id, logprob, list((dict(top) | dict(asked)).items())))
        return found

    def prompt_offsets(self, prompt_ids: Sequence[int], text: str) -> list[int]:
        """Returns the offset of each prompt token in the prompt's text, in characters.

        Tokens that the tokenizer adds around the text, such as BOS, have no text. If the tokenizer
        changes the text (Unicode normalisation), offsets refer to the changed text.
        """
        num_before = 0
        for token_id in prompt_ids:
            added = self._tokenizer.added_token(token_id)
            if added is None or text.startswith(added):
                break
            num_before += 1
        located = OutputText(self._tokenizer, skip_special_tokens=False, is_located=True)
        located.push(prompt_ids[num_before:])
        return [0] * num_before + [min(start, len(text)) for start in located.take_starts()]

    def chat_entry(self, token_id: int, logprob: float) -> dict[str, object]:
        """Returns one token in the format of chat completions."""
        return {
            "token": self.name(token_id),
            "logprob": max(logprob, LOWEST_LOGPROB),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }

    def prompt_entry(self, token_id: int, logprob: float, rank: int) -> dict[str, object]:
        """Returns one token in the format of `prompt_logprobs`."""
        value = max(logprob, LOWEST_LOGPROB)
        return {"logprob": value, "rank": rank, "decoded_token": self.name(token_id)}


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _positions(
    token_ids: Sequence[int], logprobs: TokenLogprobs, max_top: int | None = None
) -> list[tuple[int, float, Alternatives]]:
    """Returns each token's id, its logprob, and at most `max_top` likeliest alternatives."""
    sampled = unpack_floats(logprobs.sampled)
    ids, values = unpack_ids(logprobs.top_ids), unpack_floats(logprobs.top)
    k = logprobs.num_top
    shown = k if max_top is None else min(k, max_top)
    return [
        (
            token_id,
            sampled[i],
            list(zip(ids[i * k : i * k + shown], values[i * k : i * k + shown], strict=True)),
        )
        for i, token_id in enumerate(token_ids)
    ]


def prompt_entries(
    names: TokenNames, prompt_ids: Sequence[int], logprobs: TokenLogprobs | None, num_top: int
) -> list[PromptEntry | None]:
    """Returns `prompt_logprobs` in vLLM's format: null for the first token, then logprobs by id.

    Args:
        names: the spelling of tokens.
        prompt_ids: the prompt.
        logprobs: from the second token on; None for a prompt of one token.
        num_top: maximum number of alternatives.
    """
    entries: list[PromptEntry | None] = [None]
    if logprobs is None:
        return entries
    ranks = unpack_ids(logprobs.ranks)
    for row, (token_id, logprob, top) in enumerate(_positions(prompt_ids[1:], logprobs, num_top)):
        entry = {token_id: names.prompt_entry(token_id, logprob, ranks[row])}
        for rank, (other, value) in enumerate(top, 1):
            entry.setdefault(other, names.prompt_entry(other, value, rank))
        entries.append(entry)
    return entries


def chat_logprobs(
    names: TokenNames, token_ids: Sequence[int], logprobs: TokenLogprobs
) -> list[dict[str, object]]:
    """Returns `choices[].logprobs.content` of chat completions."""
    content = []
    for token_id, logprob, top in names.positions(token_ids, logprobs):
        entry = names.chat_entry(token_id, logprob)
        entry["top_logprobs"] = [names.chat_entry(*alternative) for alternative in top]
        content.append(entry)
    return content


def completion_logprobs(
    names: TokenNames,
    token_ids: Sequence[int],
    offsets: Sequence[int],
    logprobs: TokenLogprobs,
) -> Columns:
    """Returns `choices[].logprobs` of completions, for some tokens of an output.

    Args:
        names: the spelling of tokens.
        token_ids: the tokens.
        offsets: the start of each token in the choice's text.
        logprobs: of these tokens, possibly of further ones.
    """
    columns = _columns()
    rows = names.positions(token_ids, logprobs)
    for offset, (token_id, logprob, top) in zip(offsets, rows, strict=True):
        _add(names, columns, token_id, offset, logprob, top)
    return columns


def echoed_logprobs(
    names: TokenNames,
    prompt_ids: Sequence[int],
    echo: str,
    logprobs: TokenLogprobs | None,
    num_top: int,
) -> Columns:
    """Returns `choices[].logprobs` of an echoed prompt; its first token has no logprob.

    Args:
        names: the spelling of tokens.
        prompt_ids: the prompt.
        echo: its text.
        logprobs: from its second token on; None for a prompt of one token.
        num_top: maximum number of alternatives.
    """
    columns = _columns()
    offsets = names.prompt_offsets(prompt_ids, echo)
    _add(names, columns, prompt_ids[0], offsets[0], None, None)
    if logprobs is not None:
        rows = _positions(prompt_ids[1:], logprobs, num_top)
        for offset, (token_id, logprob, top) in zip(offsets[1:], rows, strict=True):
            _add(names, columns, token_id, offset, logprob, top)
    return columns


def _add(
    names: TokenNames,
    columns: Columns,
    token_id: int,
    offset: int,
    logprob: float | None,
    top: Alternatives | None,
) -> None:
    named: dict[str, float] | None = None
    value = logprob
    if logprob is not None:
        value = max(logprob, LOWEST_LOGPROB)
        named = {}
        for other, other_value in [*(top or ()), (token_id, logprob)]:
            # Two tokens may have the same spelling. The likelier one stays.
            named.setdefault(names.name(other), max(other_value, LOWEST_LOGPROB))
    columns["text_offset"].append(offset)
    columns["token_logprobs"].append(value)
    columns["tokens"].append(names.name(token_id))
    columns["top_logprobs"].append(named)


def _columns() -> Columns:
    return {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
