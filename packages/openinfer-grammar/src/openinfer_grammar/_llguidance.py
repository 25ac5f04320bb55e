"""The default backend: llguidance, lazily and over any vocabulary of a tokenizer.json."""

import ctypes
from collections.abc import Sequence

import numpy as np

from openinfer_contract import Grammar
from openinfer_grammar._backend import Accepted, MaskRows, num_mask_words
from openinfer_grammar._lowering import lower
from openinfer_grammar._native import NativeTokenizer, library
from openinfer_grammar._validation import validate
from openinfer_grammar.errors import GrammarFailed, GrammarRefused

_MAX_FORCED = 256


class LLGuidanceBackend:
    """`GrammarBackend` over llguidance.

    Args:
        tokenizer_json: content of the checkpoint's tokenizer.json.
        vocab_size: ids of the model; ids that the tokenizer lacks are never allowed.
        eos_token_ids: ids that end an output, at least one.

    Raises:
        BackendUnavailable: the tokenizer cannot be read.
    """

    name = "llguidance"

    def __init__(
        self, tokenizer_json: bytes, *, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self.vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._tokenizer = NativeTokenizer(tokenizer_json, vocab_size, eos_token_ids)

    def compile(self, grammar: Grammar, /) -> "LLGuidanceMatcher":
        """See `GrammarBackend.compile`."""
        kind, text = lower(grammar)
        if "\0" in text:
            raise GrammarRefused("must not hold a NUL character")
        handle = self._tokenizer.new_matcher(kind, text)
        matcher = LLGuidanceMatcher(self._tokenizer, handle, self.vocab_size, self._eos_token_ids)
        if (error := matcher.error) is not None:
            validate(grammar)  # finds the keyword, where the grammar itself is at fault
            raise GrammarRefused(error)
        return matcher


class LLGuidanceMatcher:
    """`Matcher` of `LLGuidanceBackend`; owns its handle."""

    def __init__(
        self,
        tokenizer: NativeTokenizer,
        handle: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._functions = library().short
        self._tokenizer = tokenizer  # outlives the handle
        self._handle = handle
        self._eos_token_ids = eos_token_ids
        self._num_accepted = 0
        self._is_ended = False
        """Whether the id accepted last ends the output; the library does not hear of that one."""
        num_bytes = self._functions.llg_matcher_get_mask_byte_size(handle)
        self._words = np.zeros(num_bytes // 4, np.uint32)
        self._num_words = num_mask_words(vocab_size)
        self._forced = (ctypes.c_uint32 * _MAX_FORCED)()

    def __del__(self) -> None:
        self._functions.llg_free_matcher(self._handle)

    @property
    def error(self) -> str | None:
        """Why the matcher is of no use, None if it is."""
        message = self._functions.llg_matcher_get_error(self._handle)
        return None if message is None else message.decode(errors="replace").strip()

    def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
        """See `Matcher.fill_mask`."""
        self._fill(rows[0])
        num_rows = 1
        for draft in drafts:
            if not rows[num_rows - 1, draft // 32] >> np.uint32(draft % 32) & 1:
                break
            self._consume([draft])
            if self._is_ended:
                num_rows += 1
                break
            self._fill(rows[num_rows])
            num_rows += 1
        if num_rows > 1:
            self.rollback(num_rows - 1)
        return num_rows

    def accept(self, token_ids: Sequence[int], /) -> Accepted:
        """See `Matcher.accept`."""
        num_tokens = self._num_allowed(token_ids) if token_ids else 0
        self._consume(token_ids[:num_tokens])
        if self._is_ended or self._functions.llg_matcher_is_stopped(self._handle):
            self._raise_error()
            return Accepted(num_tokens, ())
        num_forced = self._functions.llg_matcher_compute_ff_tokens(
            self._handle, self._forced, _MAX_FORCED
        )
        self._check(num_forced)
        return Accepted(num_tokens, tuple(self._forced[:num_forced]))

    def rollback(self, num_tokens: int, /) -> None:
        """See `Matcher.rollback`."""
        if not 0 <= num_tokens <= self._num_accepted:
            raise ValueError(f"{num_tokens} tokens back, but {self._num_accepted} were accepted")
        self._num_accepted -= num_tokens
        if num_tokens and self._is_ended:
            self._is_ended = False
            num_tokens -= 1
        self._check(self._functions.llg_matcher_rollback(self._handle, num_tokens))

    def _num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of these may come, one after the other."""
        if self._is_ended:
            return 0
        num_tokens = 0
        if not self._functions.llg_matcher_is_stopped(self._handle):
            column = np.asarray(token_ids, np.uint32)
            num_tokens = self._functions.llg_matcher_validate_tokens(
                self._handle, column.ctypes.data, len(column)
            )
            self._check(num_tokens)
        if num_tokens < len(token_ids) and token_ids[num_tokens] in self._eos_token_ids:
            self._consume(token_ids[:num_tokens])
            can_end = self._functions.llg_matcher_is_accepting(self._handle)
            self.rollback(num_tokens)
            num_tokens += can_end
        return int(num_tokens)

    def _consume(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            return
        self._is_ended = token_ids[-1] in self._eos_token_ids
        column = np.asarray(token_ids, np.uint32)
        status = self._functions.llg_matcher_consume_tokens(
            self._handle, column.ctypes.data, len(column) - self._is_ended
        )
        self._check(status)
        self._num_accepted += len(column)

    def _fill(self, row: MaskRows) -> None:
        words = self._words
        status = self._functions.llg_matcher_compute_mask_into(
            self._handle, words.ctypes.data, words.nbytes
        )
        self._check(status)
        row[:] = words[: self._num_words]

    def _raise_error(self) -> None:
        if (error := self.error) is not None:
            raise GrammarFailed(f"the grammar cannot go on: {error}")

    def _check(self, status: int) -> None:
        if status < 0:
            raise GrammarFailed(f"the grammar cannot go on: {self.error}")
