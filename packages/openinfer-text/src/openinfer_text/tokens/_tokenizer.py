"""`Tokenizer`: text to token ids and back for one checkpoint."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from openinfer_contract import pack_ids, unpack_ids
from openinfer_text._checkpoint_files import read_json, read_special_tokens
from openinfer_text.errors import CheckpointTextError
from openinfer_text.tokens._accelerated_engine import AcceleratedEngine
from openinfer_text.tokens._segment_cache import Cutter, SegmentCache, plan_cuts
from openinfer_text.tokens._token_bytes import DecoderPlan, plan_decoder
from openinfer_text.tokens._tokenizer_engine import HuggingFaceEngine, Pipeline, TokenizerEngine

_log = logging.getLogger(__name__)

DEFAULT_SEGMENT_CACHE_BYTES = 64 << 20


class Tokenizer:
    """Text to token ids and back, equal to the checkpoint's tokenizer.json, with a segment cache.

    Ids are returned as little-endian u32 `bytes`. Special and added tokens in a text become their
    ids, in user content as well, as in Hugging Face and vLLM. `add_special_tokens` only governs the
    tokens around the text (BOS, EOS).

    All methods may be called from any thread. `encode` releases the GIL while the engine works;
    cutting at special tokens, the cache and the packing of new ids hold it.

    Attributes:
        special_tokens: contents of the named ones (`bos_token` and so on), as templates read them.
        bos_token_id, eos_token_id: their ids, None if the checkpoint has none.
        whole_text_reason: why texts are not encoded by segments, None if they are.
    """

    def __init__(
        self,
        engine: TokenizerEngine,
        pipeline: Pipeline,
        *,
        special_tokens: Mapping[str, str],
        around: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        segment_cache_bytes: int = DEFAULT_SEGMENT_CACHE_BYTES,
    ) -> None:
        """Makes a tokenizer over an engine with the given pipeline.

        Args:
            engine: encodes and decodes; owned by the tokenizer.
            pipeline: parts of the engine's tokenizer.json.
            special_tokens: named special tokens.
            around: ids before and after a text with `add_special_tokens`; None asks the engine.
            segment_cache_bytes: size of the segment cache; 0 disables it.
        """
        self._engine = engine
        self._plan = plan_decoder(pipeline.decoder)
        self._added = {token.id: token.content for token in pipeline.added_tokens}
        self._added_ids = {content: token_id for token_id, content in self._added.items()}
        self._special = frozenset(token.id for token in pipeline.added_tokens if token.special)
        self._bytes: list[bytes | None] = [None] * engine.vocab_size
        self._cache = SegmentCache(segment_cache_bytes)
        self.special_tokens = dict(special_tokens)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        found = around if around is not None else _ids_around(engine)
        self._around = None if found is None else (pack_ids(found[0]), pack_ids(found[1]))
        self._cutter: Cutter | None = None
        self.whole_text_reason: str | None = None
        self._decide_cuts(pipeline)

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        *,
        segment_cache_bytes: int = DEFAULT_SEGMENT_CACHE_BYTES,
        is_accelerated: bool = False,
        verdict_folder: Path | None = None,
    ) -> "Tokenizer":
        """Reads the tokenizer of a checkpoint folder.

        Reads tokenizer.json, tokenizer_config.json (added_tokens_decoder, named tokens,
        add_bos_token, add_eos_token) and special_tokens_map.json.

        Args:
            path: the folder.
            segment_cache_bytes: size of the segment cache; 0 disables it.
            is_accelerated: encode with fastokens once a thread has found that it gives the same
                ids; see `AcceleratedEngine`.
            verdict_folder: keeps the verdict for the next start.

        Raises:
            CheckpointTextError: a file or field is missing or wrong; names it.
        """
        folder = Path(path)
        config = read_json(folder, "tokenizer_config.json") or {}
        engine = HuggingFaceEngine.from_folder(folder, config)
        named = read_special_tokens(folder, config)
        for name in ("bos_token", "eos_token"):
            if name in named and engine.token_id(named[name]) is None:
                reason = f"{named[name]!r} is not in the vocabulary of tokenizer.json"
                raise CheckpointTextError("tokenizer_config.json", name, reason)
        for content in named.values():
            if engine.token_id(content) is not None:
                engine.register_special(content)
        return cls(
            AcceleratedEngine(engine, verdict_folder) if is_accelerated else engine,
            engine.pipeline(),
            special_tokens=named,
            around=_declared_around(config, named, engine),
            segment_cache_bytes=segment_cache_bytes,
        )

    def close(self) -> None:
        """Ends background work; the tokenizer may still be used."""
        if self.acceleration is not None:
            self.acceleration.close()

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id, added tokens included."""
        return self._engine.vocab_size

    @property
    def acceleration(self) -> AcceleratedEngine | None:
        """The engine that may encode with fastokens; None unless `is_accelerated` was set."""
        return self._engine if isinstance(self._engine, AcceleratedEngine) else None

    @property
    def decoder_plan(self) -> DecoderPlan:
        """The rules by which ids become bytes, for the detokeniser."""
        return self._plan

    def encode(self, text: str, *, add_special_tokens: bool = True) -> bytes:
        """Returns the token ids of a text as a little-endian u32 column.

        Args:
            text: any text without lone surrogates.
            add_special_tokens: add the tokenizer's own tokens (BOS, EOS) around it. Rendered chats
                contain theirs already.

        Raises:
            ValueError: the text contains lone surrogates, which have no UTF-8.
        """
        if self._cutter is None or (add_special_tokens and self._around is None):
            return self._engine.encode(_utf8(text), add_special_tokens=add_special_tokens)
        before, after = (b"", b"")
        if add_special_tokens and self._around is not None:
            before, after = self._around
        return before + self._encode_cut(_utf8(text), self._cutter) + after

    def _encode_cut(self, text: str, cutter: Cutter) -> bytes:
        parts = cutter.cut(text)
        columns: list[bytes | None] = [None] * len(parts)
        columns[1::2] = [cutter.id_column(token) for token in parts[1::2]]
        pieces = parts[0::2]
        known = self._cache.get_all(pieces)
        missing = list(
            dict.fromkeys(
                piece for piece, ids in zip(pieces, known, strict=True) if piece and ids is None
            )
        )
        fresh: dict[str, bytes] = {"": b""}
        if missing:
            fresh |= zip(missing, self._engine.encode_pieces(missing), strict=True)
            self._cache.put_all((piece, fresh[piece]) for piece in missing)
        columns[0::2] = [
            fresh[piece] if ids is None else ids for piece, ids in zip(pieces, known, strict=True)
        ]
        return b"".join(column for column in columns if column)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of ids; unknown ids have none. Holds the GIL."""
        return self._engine.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of a token, possibly a part of a character.

        Ids beyond the vocabulary (padding rows of a model's output layer) have no bytes.
        """
        if not 0 <= token_id < len(self._bytes):
            return b""
        known = self._bytes[token_id]
        if known is None:
            token = self._engine.token(token_id)
            known = b"" if token is None else self._plan.token_bytes(token)
            self._bytes[token_id] = known
        return known

    def whole_text(self, token_id: int) -> str | None:
        """Returns the text of an ordinary token, None for added tokens and parts of characters."""
        if token_id in self._added:
            return None
        try:
            return self.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            return None

    def token_text(self, token_id: int) -> str:
        """Returns `token_bytes` as text for display, with U+FFFD for parts of characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def bytes_table(self) -> list[bytes]:
        """Returns `token_bytes` of every id, by id; the first call takes 0.1 s for 151,000 ids."""
        return [self.token_bytes(token_id) for token_id in range(len(self._bytes))]

    def token_id(self, token: str) -> int | None:
        """Returns the id of a vocabulary entry or added token by its spelling, or None."""
        return self._engine.token_id(token)

    def added_token(self, token_id: int) -> str | None:
        """Returns the content of an added token, special or not; None for an ordinary id."""
        return self._added.get(token_id)

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids of all added tokens by content; read only."""
        return self._added_ids

    def is_special(self, token_id: int) -> bool:
        """Returns whether decoding with `skip_special_tokens` drops this id."""
        return token_id in self._special

    def _named_id(self, name: str) -> int | None:
        content = self.special_tokens.get(name)
        return None if content is None else self._engine.token_id(content)

    def _decide_cuts(self, pipeline: Pipeline) -> None:
        plan = plan_cuts(pipeline)
        if isinstance(plan, Cutter):
            self._cutter = plan
            sample = self._mismatch([t.content for t in pipeline.added_tokens[:3]], plan)
            if sample is not None:
                self._cutter = None
                plan = f"encoding by segments gives other ids than the tokenizer for {sample!r}"
        if isinstance(plan, str):
            self.whole_text_reason = plan
            _log.info("prompts are not encoded by segments: %s", plan)

    def _mismatch(self, tokens: list[str], cutter: Cutter) -> str | None:
        """Returns a text that has other ids when encoded by pieces, None if none is found."""
        words = ("", " ", "a", " b\n", "\u0301x ", "  12")
        samples = ["Hello  world!\n", *(f"{w}{t}{v}" for t in tokens for w in words for v in words)]
        cut = [cutter.cut(sample) for sample in samples]
        texts = list(dict.fromkeys(piece for parts in cut for piece in parts[0::2]))
        ids = dict(zip(texts, self._engine.encode_pieces(texts), strict=True))
        for sample, parts in zip(samples, cut, strict=True):
            columns = [
                cutter.id_column(part) if index % 2 else ids[part]
                for index, part in enumerate(parts)
            ]
            if b"".join(columns) != self._engine.encode(sample, add_special_tokens=False):
                return sample
        return None


def _utf8(text: str) -> str:
    # The engine would raise a TypeError that does not mention lone surrogates.
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text is not valid Unicode: {error.reason}") from error
    return text


def _ids_around(engine: TokenizerEngine) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the ids that the post-processor adds around a text; None if it does more."""
    found: set[tuple[bytes, bytes]] = set()
    for probe in ("a", "Hello world", "x\ny z"):
        plain = engine.encode(probe, add_special_tokens=False)
        full = engine.encode(probe, add_special_tokens=True)
        at = next(
            (i for i in range(0, len(full), 4) if full[i : i + len(plain)] == plain), len(full)
        )
        if not plain or at == len(full):
            return None
        found.add((full[:at], full[at + len(plain) :]))
    if len(found) != 1:
        return None
    ((before, after),) = found
    return tuple(unpack_ids(before)), tuple(unpack_ids(after))


def _declared_around(
    config: Mapping[str, object], named: Mapping[str, str], engine: TokenizerEngine
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the ids for add_bos_token and add_eos_token; None if the config has neither."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return None
    sides = []
    for flag, name in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")):
        token_id = engine.token_id(named[name]) if name in named else None
        sides.append((token_id,) if config.get(flag) and token_id is not None else ())
    return sides[0], sides[1]
