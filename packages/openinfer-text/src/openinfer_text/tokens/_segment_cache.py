"""Splitting of a text at its added tokens, and a cache of the ids of the pieces between them.

A tokenizer of the `tokenizers` library first cuts added tokens out of the raw text, leftmost and
longest first. Then it normalizes, pre-tokenizes and merges every remaining piece alone. Encoding
the pieces one by one and joining the ids is therefore exact, unless

- an added token depends on its neighbours (lstrip, rstrip, single_word),
- the pre-tokenizer treats the first piece of a text differently (Metaspace "first"), or is one
  this module does not know,
- the model draws at random (BPE dropout).

`plan_cuts` decides whether pieces can be used. Tokens marked `normalized` are matched after
normalization, so they are cut here only if there is no normalizer.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

from openinfer_contract import pack_ids
from openinfer_text.tokens._tokenizer_engine import Pipeline

_MAX_FORKS = 32
"""Maximum number of nested groups in a pattern; words of vocabularies need only a few."""
_PIECEWISE_PRE_TOKENIZERS = frozenset(
    {
        "ByteLevel",
        "Split",
        "Whitespace",
        "WhitespaceSplit",
        "Digits",
        "Punctuation",
        "BertPreTokenizer",
        "CharDelimiterSplit",
        "UnicodeScripts",
    }
)


class Cutter:
    """Splitter of text into ordinary pieces and added tokens; immutable, any thread."""

    def __init__(self, levels: Sequence[dict[str, int]]) -> None:
        self._patterns = [re.compile(f"({literal_pattern(level)})") for level in levels if level]
        self._ids = {
            content: pack_ids((token_id,))
            for level in levels
            for content, token_id in level.items()
        }

    def cut(self, text: str) -> list[str]:
        """Returns pieces at even indices (possibly empty), added tokens at odd ones."""
        parts = [text]
        for pattern in self._patterns:
            finer: list[str] = []
            for index, part in enumerate(parts):
                if index % 2:
                    finer.append(part)
                else:
                    finer.extend(pattern.split(part))
            parts = finer
        return parts

    def id_column(self, token: str) -> bytes:
        """Returns the id of an added token as a u32 column."""
        return self._ids[token]


def plan_cuts(pipeline: Pipeline) -> Cutter | str:
    """Returns the splitter that is exact for this tokenizer, or the reason why there is none."""
    if pipeline.has_dropout:
        return "the model uses BPE dropout"
    reason = _position_dependence(pipeline.pre_tokenizer)
    if reason is not None:
        return reason
    raw = [t for t in pipeline.added_tokens if not t.normalized and t.content]
    for token in raw:
        if token.has_context_flags:
            return f"added token {token.content!r} depends on the text around it"
    levels = [{token.content: token.id for token in raw}]
    late = [t for t in pipeline.added_tokens if t.normalized and t.content]
    if not any(token.has_context_flags for token in late) and _is_empty(pipeline.normalizer):
        levels.append({token.content: token.id for token in late})
    return Cutter(levels)


def _is_empty(normalizer: dict[str, Any] | None) -> bool:
    return normalizer is None or (
        normalizer.get("type") == "Sequence" and not normalizer.get("normalizers")
    )


def _position_dependence(pre_tokenizer: dict[str, Any] | None) -> str | None:
    if pre_tokenizer is None:
        return None
    kind = pre_tokenizer.get("type")
    if kind == "Sequence":
        reasons = (_position_dependence(part) for part in pre_tokenizer["pretokenizers"])
        return next((reason for reason in reasons if reason is not None), None)
    if kind == "Metaspace":
        if pre_tokenizer.get("prepend_scheme") in ("always", "never"):
            return None
        return "the Metaspace pre-tokenizer treats the start of a text differently"
    if kind in _PIECEWISE_PRE_TOKENIZERS:
        return None
    return f"pre-tokenizer {kind} is not known to work piece by piece"


def literal_pattern(words: Iterable[str]) -> str:
    """Returns a regular expression that matches the longest of some words at each position.

    Words share their prefixes, so thousands of reserved tokens cost as little as a few.
    """
    trie: dict[str, Any] = {}
    for word in words:
        node = trie
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _trie_pattern(trie)


def _trie_pattern(node: dict[str, Any], num_forks: int = 0) -> str:
    if num_forks == _MAX_FORKS:
        # Deeper groups would overflow the stack, here and in the compiler of `re`.
        rests = sorted(_words_of(node), key=len, reverse=True)
        return f"(?:{'|'.join(map(re.escape, rests))})"
    branches = []
    for char, child in node.items():
        if not char:
            continue
        # A chain without branches is followed here, so that the depth counts forks, not characters.
        literal = char
        while len(child) == 1 and "" not in child:
            ((char, child),) = child.items()
            literal += char
        branches.append(re.escape(literal) + _trie_pattern(child, num_forks + 1))
    if not branches:
        return ""
    body = f"(?:{'|'.join(branches)})" if len(branches) > 1 or "" in node else branches[0]
    return f"{body}?" if "" in node else body


def _words_of(trie: dict[str, Any]) -> Iterator[str]:
    rests = [("", trie)]
    while rests:
        begun, node = rests.pop()
        for char, child in node.items():
            if char:
                rests.append((begun + char, child))
            else:
                yield begun


class SegmentCache:
    """Ids of text pieces within a number of bytes; the least recently used is evicted first.

    Safe to share between threads; holds a lock for microseconds.
    """

    _ENTRY_OVERHEAD_BYTES = 200

    def __init__(self, max_bytes: int) -> None:
        """Keeps at most `max_bytes`; 0 keeps nothing.

        Raises:
            ValueError: `max_bytes` is negative.
        """
        if max_bytes < 0:
            raise ValueError("max_bytes must not be negative")
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes in use: text, ids and a constant for each entry."""
        return self._num_bytes

    def get_all(self, pieces: Sequence[str]) -> list[bytes | None]:
        """Returns the ids of each piece, None if unknown, and marks known pieces as used."""
        entries = self._entries
        with self._lock:
            found = [entries.get(piece) for piece in pieces]
            for piece, ids in zip(pieces, found, strict=True):
                if ids is not None:
                    entries.move_to_end(piece)
        return found

    def put_all(self, pieces: Iterable[tuple[str, bytes]]) -> None:
        """Adds pieces, except those larger than a quarter of the cache."""
        with self._lock:
            for piece, ids in pieces:
                cost = self._cost(piece, ids)
                if cost * 4 <= self._max_bytes and piece not in self._entries:
                    self._entries[piece] = ids
                    self._num_bytes += cost
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= self._cost(*self._entries.popitem(last=False))

    def _cost(self, piece: str, ids: bytes) -> int:
        return len(piece) * (1 if piece.isascii() else 4) + len(ids) + self._ENTRY_OVERHEAD_BYTES
