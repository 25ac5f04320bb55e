"""Vocabulary and grammars on threads of their own, whose work is native calls."""

import ctypes
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from openinfer_contract import Grammar
from openinfer_grammar._backend import GrammarBackend
from openinfer_grammar._constraint import Constraint
from openinfer_grammar.errors import BackendUnavailable, GrammarFailed, GrammarRefused
from openinfer_grammar.llguidance._native_library import letting_go

_NUM_THREADS = 2

_logger = logging.getLogger(__name__)


class GrammarCompiler:
    """Makes constraints without the caller ever waiting.

    The vocabulary is built in the background from the start; grammars that come earlier wait for
    it. Methods may be called from any thread.

    Args:
        make_backend: reads the vocabulary; called once, on a thread of the compiler.
    """

    def __init__(self, make_backend: Callable[[], GrammarBackend]) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="openinfer-grammar")
        self._backend = self._threads.submit(_build, make_backend)

    def compile(self, grammar: Grammar, output: Sequence[int] = ()) -> Future[Constraint]:
        """A constraint that has gone on by `output`, once it is there.

        The future fails with GrammarRefused, which also stands for an `output` that the grammar
        does not allow, or with BackendUnavailable. It may be cancelled.
        """
        return self._threads.submit(self._compile, grammar, output)

    def close(self) -> None:
        """Cancels what waits and returns when the threads have ended. Idempotent."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _compile(self, grammar: Grammar, output: Sequence[int]) -> Constraint:
        try:
            with letting_go():
                constraint = Constraint(self._backend.result().compile(grammar), grammar)
                constraint.accept(output)
        except GrammarFailed as error:
            raise GrammarRefused(str(error)) from error
        except (GrammarRefused, BackendUnavailable):
            raise
        except Exception as error:
            # Whatever a client's text does to a backend, it does to that client alone.
            _logger.exception("a %s cannot be compiled", grammar.kind)
            raise GrammarRefused(f"cannot be compiled ({type(error).__name__})") from error
        return constraint


def _build(make_backend: Callable[[], GrammarBackend]) -> GrammarBackend:
    begin = time.monotonic()
    try:
        backend = make_backend()
    except BackendUnavailable as error:
        _logger.error("there are no grammars: %s", error)
        raise
    _trim()
    _logger.info("vocabulary for grammars ready in %.2f s", time.monotonic() - begin)
    return backend


def _trim() -> None:
    """Gives back what reading a vocabulary has taken beyond keeping it: 100 MB for 151k ids."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:  # it is glibc's
        malloc_trim(0)
