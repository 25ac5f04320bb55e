"""The default backend: llguidance, which compiles lazily, over a tokenizer.json."""

import ctypes
from collections.abc import Sequence
from threading import Timer

import numpy as np

from openinfer_contract import Grammar
from openinfer_grammar._backend import Accepted, MaskRows, num_mask_words
from openinfer_grammar._nesting import call_with_stack
from openinfer_grammar.errors import GrammarFailed, GrammarRefused
from openinfer_grammar.llguidance._lowering import Lowered, lower
from openinfer_grammar.llguidance._native_library import (
    Functions,
    NativeTokenizer,
    library,
    releasing_gil,
)
from openinfer_grammar.llguidance._validation import validate

_MAX_FORCED = 256
_MAX_BEGIN_SECONDS = 1.0
"""Maximum seconds for a grammar's first mask and forced ids: 15 characters of regex can force a
megabyte of text."""


class LLGuidanceBackend:
    """A `GrammarBackend` over llguidance.

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
        lowered = lower(grammar)
        return call_with_stack(lowered.levels, lambda: self._compile(grammar, lowered))

    def _compile(self, grammar: Grammar, lowered: Lowered) -> "LLGuidanceMatcher":
        handle = self._tokenizer.new_matcher(lowered.kind, lowered.text)
        matcher = LLGuidanceMatcher(self._tokenizer, handle, self.vocab_size, self._eos_token_ids)
        if (error := matcher.error) is not None:
            validate(grammar)  # raises with the keyword, if the grammar is at fault
            raise GrammarRefused(error)
        with releasing_gil():  # this may be a thread that exists only for the compilation
            matcher.begin()
        return matcher


class LLGuidanceMatcher:
    """The `Matcher` of `LLGuidanceBackend`; owns its handle.

    Its calls are short and keep the GIL, except inside of `releasing_gil`, which threads beside the
    step thread use.
    """

    def __init__(
        self,
        tokenizer: NativeTokenizer,
        handle: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._tokenizer = tokenizer  # outlives the handle
        self._handle = handle
        self._eos_token_ids = eos_token_ids
        self._num_accepted = 0
        self._is_ended = False
        """Whether the last accepted id ends the output; that id is not passed to the library."""
        num_bytes = self._functions.llg_matcher_get_mask_byte_size(handle)
        self._words = np.zeros(num_bytes // 4, np.uint32)
        self._num_words = num_mask_words(vocab_size)
        self._ends = _bits(eos_token_ids, self._num_words)
        self._forced = (ctypes.c_uint32 * _MAX_FORCED)()

    def __del__(self) -> None:
        library().short.llg_free_matcher(self._handle)

    @property
    def _functions(self) -> Functions:
        return library().functions

    @property
    def error(self) -> str | None:
        """The error that makes the matcher unusable; None if there is none."""
        message = self._functions.llg_matcher_get_error(self._handle)
        return None if message is None else _plain(message.decode(errors="replace"))

    def begin(self) -> None:
        """Computes the first mask and the first forced ids, within a second.

        Raises:
            GrammarRefused: this takes longer, reaches a limit, or no token can be the first.
        """
        functions = library().long
        cancel = functions.llg_matcher_get_cancellation_handle(self._handle)
        timer = Timer(_MAX_BEGIN_SECONDS, functions.llg_cancel, (cancel,))
        timer.start()
        try:
            self.accept(())
            self._fill(self._words[: self._num_words])
        except GrammarFailed as error:
            if functions.llg_matcher_is_cancelled(self._handle):
                message = f"takes more than {_MAX_BEGIN_SECONDS:g} s to start; make it smaller"
                raise GrammarRefused(message) from error
            raise GrammarRefused(str(error)) from error
        finally:
            timer.cancel()
            timer.join()
            functions.llg_free_cancellation_handle(cancel)

    def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
        """See `Matcher.fill_mask`."""
        self._fill(rows[0])
        num_rows = 1
        for draft in drafts:
            if not rows[num_rows - 1, draft // 32] >> np.uint32(draft % 32) & 1:
                break
            if self._is_ended and draft in self._eos_token_ids:
                break
            self._consume([draft])
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
            raise ValueError(
                f"cannot roll back {num_tokens} tokens: {self._num_accepted} were accepted"
            )
        self._num_accepted -= num_tokens
        if num_tokens and self._is_ended:
            self._is_ended = False
            num_tokens -= 1
        self._check(self._functions.llg_matcher_rollback(self._handle, num_tokens))

    def _num_allowed(self, token_ids: Sequence[int]) -> int:
        """Returns how many of these ids, from the first on, the grammar allows in sequence."""
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
        if self._is_ended:
            row[:] = self._ends
            return
        words = self._words
        status = self._functions.llg_matcher_compute_mask_into(
            self._handle, words.ctypes.data, words.nbytes
        )
        self._check(status)
        row[:] = words[: self._num_words]

    def _raise_error(self) -> None:
        if (error := self.error) is not None:
            raise GrammarFailed(f"the grammar cannot continue: {error}")

    def _check(self, status: int) -> None:
        if status < 0:
            raise GrammarFailed(f"the grammar cannot continue: {self.error}")


def _bits(token_ids: frozenset[int], num_words: int) -> MaskRows:
    """Returns a mask row that allows these ids."""
    bits = np.zeros(32 * num_words, np.uint8)
    bits[[i for i in token_ids if i < len(bits)]] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def _plain(message: str) -> str:
    """Returns the library's message, or a clearer one where this module has one."""
    message = message.replace("<non-verbose/>", "").strip()
    if message == "NoExtensionBias":
        return "no token can come next"
    return message
