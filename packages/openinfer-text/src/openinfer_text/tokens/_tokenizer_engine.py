"""Engines of a `Tokenizer`: the Protocol, and the Hugging Face `tokenizers` library."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from openinfer_contract import pack_ids
from openinfer_text.errors import CheckpointTextError


class TokenizerEngine(Protocol):
    """Text to ids and back, without caches and without knowledge of chats.

    Every method may be called from any thread. Encoding methods release the GIL while they work.
    """

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        ...

    def encode(self, text: str, /, *, add_special_tokens: bool) -> bytes:
        """Returns the u32 column of a text; added tokens in the text become their ids."""
        ...

    def encode_pieces(self, texts: list[str], /) -> list[bytes]:
        """Returns u32 columns of independent texts, without added special tokens."""
        ...

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str:
        """Returns the text of the ids; ids outside the vocabulary contribute nothing."""
        ...

    def token(self, token_id: int, /) -> str | None:
        """Returns the vocabulary's spelling of an id, or None."""
        ...

    def token_id(self, token: str, /) -> int | None:
        """Returns the id of a spelling, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is cut out of a text before the rest is tokenised."""

    id: int
    content: str
    special: bool
    normalized: bool
    has_context_flags: bool
    """Whether it has lstrip, rstrip or single_word: its match depends on the text around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Parts of a tokenizer.json that decide how text may be cut, and how ids become bytes."""

    added_tokens: tuple[AddedToken, ...]
    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    decoder: dict[str, Any] | None
    has_dropout: bool


class HuggingFaceEngine:
    """A `TokenizerEngine` over the `tokenizers` library (Rust)."""

    def __init__(self, tokenizer: "tokenizers.Tokenizer", path: Path | None = None) -> None:
        """Takes a tokenizer.

        Args:
            tokenizer: owned by the engine.
            path: its tokenizer.json, if that file describes it completely.
        """
        self._path = path
        # Some checkpoints contain the truncation setting of their training run.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        model_size = tokenizer.get_vocab_size(with_added_tokens=False)
        self._vocab_size = max(model_size, max(added, default=-1) + 1)

    @classmethod
    def from_folder(cls, folder: Path, config: dict[str, Any]) -> "HuggingFaceEngine":
        """Reads the engine of a checkpoint folder.

        Args:
            folder: holds tokenizer.json.
            config: tokenizer_config.json. Tokens of its `added_tokens_decoder` that tokenizer.json
                lacks, or that have other flags there, are added.

        Raises:
            CheckpointTextError: tokenizer.json is missing or cannot be read, or an added token of
                the config contradicts it.
        """
        name = "tokenizer.json"
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            reason = "there is no such file in the checkpoint folder"
            raise CheckpointTextError(name, "", reason) from error
        try:
            tokenizer = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises bare Exception and ValueError
            reason = f"the tokenizers library cannot read it ({error})"
            raise CheckpointTextError(name, "", reason) from error
        is_changed = _add_declared_tokens(tokenizer, config.get("added_tokens_decoder"))
        return cls(tokenizer, None if is_changed else folder / name)

    def register_special(self, content: str) -> None:
        """Makes a token of the vocabulary a special token, unless it is already an added token."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        if all(token.content != content for token in added):
            self._tokenizer.add_special_tokens([content])
            self._path = None

    def definition(self) -> str:
        """Returns a tokenizer.json that describes this tokenizer: megabytes, computed anew."""
        if self._path is not None:
            return self._path.read_text(encoding="utf-8")
        text: str = self._tokenizer.to_str()
        return text

    def pipeline(self) -> Pipeline:
        """Returns the parts of this tokenizer."""
        added = self._tokenizer.get_added_tokens_decoder()
        return Pipeline(
            added_tokens=tuple(_describe(token_id, token) for token_id, token in added.items()),
            normalizer=_state(self._tokenizer.normalizer),
            pre_tokenizer=_state(self._tokenizer.pre_tokenizer),
            decoder=_state(self._tokenizer.decoder),
            has_dropout=bool(getattr(self._tokenizer.model, "dropout", None)),
        )

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        return self._vocab_size

    def encode(self, text: str, /, *, add_special_tokens: bool) -> bytes:
        """Returns the u32 column of a text."""
        # The batch call releases the GIL and computes no offsets; the single call does neither.
        batch = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return pack_ids(batch[0].ids)

    def encode_pieces(self, texts: list[str], /) -> list[bytes]:
        """Returns u32 columns of independent texts, encoded in parallel."""
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [pack_ids(encoding.ids) for encoding in batch]

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str:
        """Returns the text of the ids."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def token(self, token_id: int, /) -> str | None:
        """Returns the vocabulary's spelling of an id, or None."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def token_id(self, token: str, /) -> int | None:
        """Returns the id of a spelling, or None."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id


def _state(component: Any) -> dict[str, Any] | None:
    # A component pickles as its JSON, which avoids a second parse of a 10 MB tokenizer.json.
    if component is None:
        return None
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def _describe(token_id: int, token: "tokenizers.AddedToken") -> AddedToken:
    return AddedToken(
        id=token_id,
        content=token.content,
        special=token.special,
        normalized=token.normalized,
        has_context_flags=token.lstrip or token.rstrip or token.single_word,
    )


def _add_declared_tokens(tokenizer: "tokenizers.Tokenizer", declared: Any) -> bool:
    """Adds declared tokens; returns whether there were any to add."""
    if declared is None:
        return False
    file, field = "tokenizer_config.json", "added_tokens_decoder"
    if not isinstance(declared, dict):
        raise CheckpointTextError(file, field, "must be an object keyed by token id")
    known = tokenizer.get_added_tokens_decoder()
    wanted: dict[int, Any] = {}
    for key, entry in declared.items():
        if not key.isdecimal() or not isinstance(entry, dict) or "content" not in entry:
            raise CheckpointTextError(file, f"{field}.{key}", "must map an id to a token object")
        flags = {name: bool(entry[name]) for name in _FLAGS if name in entry}
        token = tokenizers.AddedToken(entry["content"], **flags)
        if int(key) not in known or not _same(token, known[int(key)]):
            wanted[int(key)] = token
    tokenizer.add_tokens([wanted[token_id] for token_id in sorted(wanted)])
    for token_id, token in wanted.items():
        got = tokenizer.token_to_id(token.content)
        if got != token_id:
            reason = f"declares {token.content!r}, but tokenizer.json gives that token the id {got}"
            raise CheckpointTextError(file, f"{field}.{token_id}", reason)
    return bool(wanted)


_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def _same(a: "tokenizers.AddedToken", b: "tokenizers.AddedToken") -> bool:
    return a.content == b.content and all(getattr(a, f) == getattr(b, f) for f in _FLAGS)
