"""`IncrementalDetokenizer`: token ids to text, one id at a time, in complete characters."""

import codecs
from collections.abc import Collection, Iterable

from openinfer_text.tokens._token_bytes import REPLACE_EACH_BYTE
from openinfer_text.tokens._tokenizer import Tokenizer

_CONTEXT_TOKENS = 6
_REPLACEMENT = "\ufffd"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return _REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(REPLACE_EACH_BYTE, _replace_each_byte)


class IncrementalDetokenizer:
    """The text of a growing sequence of ids; one for each output, one thread at a time.

    Each id is one `push`. Bytes that end inside a character are held back until it is complete.
    U+FFFD appears only for bytes that can no longer become a character. The concatenation of all
    pushes and `flush` equals the tokenizer's own decode of all ids, with one exception: if a run of
    `<0x..>` tokens ends inside a character, a byte-fallback tokenizer replaces the whole run,
    complete characters included. The complete characters have already been sent by then.
    """

    __slots__ = (
        "_bare_neighbours",
        "_last_was_added",
        "_shown_ids",
        "_skip",
        "_stream",
        "_tokenizer",
        "is_plain",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        shown_tokens: Collection[str] = (),
        spaces_between_special_tokens: bool = True,
        context_ids: Iterable[int] = (),
    ) -> None:
        """Starts a text.

        Args:
            tokenizer: shared, not owned.
            skip_special_tokens: whether special tokens have no text.
            shown_tokens: special tokens that always have text.
            spaces_between_special_tokens: if False, neighbouring added tokens are joined without
                spaces; this matters only for tokenizers whose decoder writes spaces.
            context_ids: the last few ids before this text. A character or word that began there
                is continued; at the start of a text its leading space would be dropped.
        """
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._shown_ids = frozenset(map(tokenizer.token_id, shown_tokens))
        self._bare_neighbours = not (skip_special_tokens or spaces_between_special_tokens)
        self._last_was_added = False
        is_table = tokenizer.decoder_plan.is_table
        self._stream: _ByteStream | _WindowStream = (
            _ByteStream(tokenizer) if is_table else _WindowStream(tokenizer)
        )
        is_bare = self._bare_neighbours or tokenizer.decoder_plan.num_leading_spaces > 0
        self.is_plain = is_table and not is_bare
        """Whether a token of complete characters adds exactly its own text if no bytes are held."""
        for token_id in list(context_ids)[-_CONTEXT_TOKENS:]:
            self.push(token_id)

    @property
    def has_pending(self) -> bool:
        """Whether bytes of an unfinished character are held back."""
        return self._stream.has_pending

    @property
    def pending_text(self) -> str:
        """Text of the held bytes if their character is never completed."""
        return self._stream.pending_text

    def push(self, token_id: int) -> str:
        """Appends an id and returns the text that it completes, "" while bytes are held back."""
        if self._skip:
            if self._tokenizer.is_special(token_id) and token_id not in self._shown_ids:
                return ""
        elif self._bare_neighbours:
            added = self._tokenizer.added_token(token_id)
            follows = added is not None and self._last_was_added
            self._last_was_added = added is not None
            if added is not None and follows:
                return self._stream.flush() + added
        return self._stream.push(token_id)

    def flush(self) -> str:
        """Ends the text and returns its rest: U+FFFD for an incomplete character."""
        return self._stream.flush()


class _ByteStream:
    """A table of bytes and a UTF-8 decoder, for tokenizers that decode each token independently."""

    __slots__ = ("_decoder", "_num_strip", "_token_bytes")

    def __init__(self, tokenizer: Tokenizer) -> None:
        plan = tokenizer.decoder_plan
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(plan.utf8_errors)
        self._num_strip = plan.num_leading_spaces

    @property
    def has_pending(self) -> bool:
        return bool(self._decoder.getstate()[0])

    @property
    def pending_text(self) -> str:
        return self._decoder.getstate()[0].decode("utf-8", self._decoder.errors)

    def push(self, token_id: int) -> str:
        text = self._decoder.decode(self._token_bytes(token_id))
        return self._strip(text) if self._num_strip and text else text

    def flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        return self._strip(text) if self._num_strip and text else text

    def _strip(self, text: str) -> str:
        while self._num_strip and text.startswith(" "):
            text = text[1:]
            self._num_strip -= 1
        if text:
            self._num_strip = 0
        return text


class _WindowStream:
    """The difference of two decodes of a short window of ids, for any other tokenizer.

    The tokens' bytes are used only to see where a character is unfinished. An endless run of
    invalid bytes is shown in groups, so that the window stays short.
    """

    _MAX_HELD = 8

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._token_bytes = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown_ids: list[int] = []
        self._held_ids: list[int] = []

    @property
    def has_pending(self) -> bool:
        return bool(self._held_ids)

    @property
    def pending_text(self) -> str:
        return self._new_text()

    def push(self, token_id: int) -> str:
        self._held_ids.append(token_id)
        self._utf8.decode(self._token_bytes(token_id))
        is_unfinished = bool(self._utf8.getstate()[0])
        if is_unfinished and len(self._held_ids) < self._MAX_HELD:
            return ""
        text = self._new_text()
        self._take_over(text)
        return text

    def flush(self) -> str:
        text = self._new_text()
        self._take_over(text)
        return text

    def _new_text(self) -> str:
        if not self._held_ids:
            return ""
        before = self._decode(self._shown_ids, skip_special_tokens=False)
        both = self._decode(self._shown_ids + self._held_ids, skip_special_tokens=False)
        return both[len(before) :]

    def _take_over(self, text: str) -> None:
        if text:
            self._shown_ids = self._held_ids
        else:
            # Ids without text are no context for the next one, so the ids before them are kept.
            self._shown_ids = (self._shown_ids + self._held_ids)[-_CONTEXT_TOKENS:]
        self._held_ids = []
