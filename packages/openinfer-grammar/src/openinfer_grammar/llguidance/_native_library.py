"""The part of llguidance's C interface that is used here.

The wheel's own Python classes hold the GIL while they read a vocabulary: 2.7 s for 150,000 tokens,
in which no step can run. Long calls from here release the GIL (`ctypes.CDLL`). The short calls of a
step keep it (`ctypes.PyDLL`), which is cheaper and never waits for another thread to release it.
The structures are those of `llguidance.h` 1.9.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char_p,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import local

from openinfer_grammar.errors import BackendUnavailable

_ERROR_BYTES = 4096
_MAX_STEP_ITEMS = 10_000
"""Maximum number of parser items in one step. The library's own limit is five times as high and
would allow a third of a second on the step thread. A JSON schema with 300 optional properties needs
2,000."""


class _Limits(Structure):
    _fields_ = [
        ("max_items_in_row", c_size_t),
        ("initial_lexer_fuel", c_uint64),
        ("step_lexer_fuel", c_uint64),
        ("step_max_items", c_size_t),
        ("max_lexer_states", c_size_t),
        ("max_grammar_size", c_size_t),
        ("precompute_large_lexemes", c_bool),
        ("verbose_errors", c_bool),
    ]


class _ConstraintInit(Structure):
    _fields_ = [
        ("tokenizer", c_void_p),
        ("log_buffer_level", c_uint32),
        ("log_stderr_level", c_uint32),
        ("ff_tokens_ok", c_bool),
        ("backtrack_ok", c_bool),
        ("limits", _Limits),
    ]


class _TokenizerInit(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("vocab_size", c_uint32),
        ("tok_eos", c_uint32),
        ("token_lens", c_void_p),
        ("token_bytes", c_void_p),
        ("tokenizer_json", c_char_p),
        ("tokenize_assumes_string", c_bool),
        ("tokenize_fn", c_void_p),
        ("use_approximate_greedy_tokenize_fn", c_bool),
        ("tokenize_user_data", c_void_p),
        ("slices", c_void_p),
        ("tok_eos_extra", c_void_p),
        ("tok_eos_extra_count", c_uint32),
    ]


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "llg_new_tokenizer_v2": (c_void_p, [POINTER(_TokenizerInit), c_char_p, c_size_t]),
    "llg_free_tokenizer": (None, [c_void_p]),
    "llg_constraint_init_set_defaults": (None, [POINTER(_ConstraintInit), c_void_p]),
    "llg_new_matcher": (c_void_p, [POINTER(_ConstraintInit), c_char_p, c_char_p]),
    "llg_free_matcher": (None, [c_void_p]),
    "llg_matcher_get_error": (c_char_p, [c_void_p]),
    "llg_matcher_is_accepting": (c_bool, [c_void_p]),
    "llg_matcher_is_stopped": (c_bool, [c_void_p]),
    "llg_matcher_get_mask_byte_size": (c_size_t, [c_void_p]),
    "llg_matcher_compute_mask_into": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "llg_matcher_consume_tokens": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "llg_matcher_validate_tokens": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "llg_matcher_rollback": (c_int32, [c_void_p, c_size_t]),
    "llg_matcher_compute_ff_tokens": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "llg_matcher_get_cancellation_handle": (c_void_p, [c_void_p]),
    "llg_matcher_is_cancelled": (c_bool, [c_void_p]),
    "llg_cancel": (None, [c_void_p]),
    "llg_free_cancellation_handle": (None, [c_void_p]),
}


Functions = ctypes.CDLL
"""The library's functions, named in `_SIGNATURES`."""


_thread = local()


@contextmanager
def releasing_gil() -> Iterator[None]:
    """Makes calls of matchers on this thread release the GIL."""
    before = getattr(_thread, "releases_gil", False)
    _thread.releases_gil = True
    try:
        yield
    finally:
        _thread.releases_gil = before


class Library:
    """The loaded library.

    Attributes:
        long: its functions, releasing the GIL.
        short: the same functions, keeping the GIL, for calls of microseconds.
        functions: `long` inside of `releasing_gil`, else `short`.
    """

    def __init__(self, path: str) -> None:
        self.long: Functions = ctypes.CDLL(path)
        self.short: Functions = ctypes.PyDLL(path)
        for functions in (self.long, self.short):
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(functions, name)
                function.restype, function.argtypes = result, arguments

    @property
    def functions(self) -> Functions:
        return self.long if getattr(_thread, "releases_gil", False) else self.short


@cache
def library() -> Library:
    """Returns the library of the installed wheel.

    Raises:
        BackendUnavailable: it is missing, or lacks the C interface.
    """
    try:
        # The library is located without importing its Python part, which would take 45 ms at the
        # start of an engine.
        spec = find_spec("llguidance")
        folders = () if spec is None else spec.submodule_search_locations or ()
        found = [path for folder in folders for path in Path(folder).glob("_lib*.so")]
        if not found:
            raise OSError("its library is missing")
        return Library(str(found[0]))
    except (OSError, AttributeError) as error:
        reason = f"llguidance cannot be used ({error}); reinstall openinfer-grammar"
        raise BackendUnavailable(reason) from error


class NativeTokenizer:
    """A vocabulary in native memory; shared by matchers, any thread.

    Forced text is tokenised by taking the longest token that fits. A second, plain vocabulary does
    that. Its C function is the tokenizer of this vocabulary, so that no Python runs in between.

    Args:
        tokenizer_json: content of tokenizer.json.
        vocab_size: number of ids of the model; all ids of the tokenizer are kept in any case.
        eos_token_ids: at least one.

    Raises:
        BackendUnavailable: the vocabulary cannot be read.
    """

    def __init__(
        self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._library = library()
        self._spelling: int | None = None
        self.handle: int | None = None
        first, *others = eos_token_ids
        extra = (c_uint32 * len(others))(*others)
        no_slices = (c_char_p * 1)(None)
        init = _TokenizerInit(
            struct_size=ctypes.sizeof(_TokenizerInit),
            vocab_size=vocab_size,
            tok_eos=first,
            tokenizer_json=tokenizer_json,
            use_approximate_greedy_tokenize_fn=True,
            slices=ctypes.cast(no_slices, c_void_p),
            tok_eos_extra=ctypes.cast(extra, c_void_p),
            tok_eos_extra_count=len(others),
        )
        self._spelling = self._new(init)
        init.use_approximate_greedy_tokenize_fn = False
        init.tokenize_fn = ctypes.cast(self._library.long.llg_tokenize_bytes, c_void_p)
        init.tokenize_user_data = self._spelling
        init.slices = None
        self.handle = self._new(init)

    def _new(self, init: _TokenizerInit) -> int:
        message = ctypes.create_string_buffer(_ERROR_BYTES)
        handle = self._library.long.llg_new_tokenizer_v2(byref(init), message, _ERROR_BYTES)
        if not handle:
            reason = f"tokenizer.json cannot be read: {message.value.decode(errors='replace')}"
            raise BackendUnavailable(reason)
        return int(handle)

    def new_matcher(self, kind: str, text: str) -> int:
        """Returns the handle of a new matcher; the caller checks it for errors and frees it."""
        functions = self._library.long
        init = _ConstraintInit()
        functions.llg_constraint_init_set_defaults(byref(init), self.handle)
        init.log_buffer_level = init.log_stderr_level = 0
        init.limits.verbose_errors = False
        init.limits.step_max_items = _MAX_STEP_ITEMS
        return int(functions.llg_new_matcher(byref(init), kind.encode(), text.encode()))

    def __del__(self) -> None:
        # The order matters, because the vocabulary calls the plain one.
        for handle in (self.handle, self._spelling):
            if handle is not None:
                self._library.short.llg_free_tokenizer(handle)
