"""`GrammarCompiler`: vocabulary and grammars compiled on background threads."""

import ctypes
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from openinfer_contract import Grammar
from openinfer_grammar._backend import GrammarBackend
from openinfer_grammar._constraint import Constraint
from openinfer_grammar.errors import BackendUnavailable, GrammarFailed, GrammarRefused
from openinfer_grammar.llguidance._native_library import releasing_gil

_NUM_THREADS = 2

_logger = logging.getLogger(__name__)


class GrammarCompiler:
    """Compiler of constraints that never blocks its caller.

    The vocabulary is built in the background from the start. Grammars that come earlier wait for
    it. Methods may be called from any thread.

    Args:
        make_backend: reads the vocabulary; called once, on a thread of the compiler.
    """

    def __init__(self, make_backend: Callable[[], GrammarBackend]) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="openinfer-grammar")
        self._backend = self._threads.submit(_build, make_backend)

    def compile(self, grammar: Grammar, output: Sequence[int] = ()) -> Future[Constraint]:
        """Compiles a constraint and advances it by `output`.

        The future fails with GrammarRefused, also if the grammar does not allow `output`, or with
        BackendUnavailable. It may be cancelled.
        """
        return self._threads.submit(self._compile, grammar, output)

    def close(self) -> None:
        """Cancels waiting grammars and returns when the threads have ended. Idempotent."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _compile(self, grammar: Grammar, output: Sequence[int]) -> Constraint:
        try:
            with releasing_gil():
                constraint = Constraint(self._backend.result().compile(grammar), grammar)
                constraint.accept(output)
        except GrammarFailed as error:
            raise GrammarRefused(str(error)) from error
        except (GrammarRefused, BackendUnavailable):
            raise
        except Exception as error:
            # An unexpected error of a backend fails only the request whose grammar caused it.
            _logger.exception("a %s cannot be compiled", grammar.kind)
            raise GrammarRefused(f"cannot be compiled ({type(error).__name__})") from error
        return constraint


def _build(make_backend: Callable[[], GrammarBackend]) -> GrammarBackend:
    begin = time.monotonic()
    try:
        backend = make_backend()
    except BackendUnavailable as error:
        _logger.error("grammars are not available: %s", error)
        raise
    _trim()
    _logger.info("vocabulary for grammars ready in %.2f s", time.monotonic() - begin)
    return backend


def _trim() -> None:
    """Returns to the system the 100 MB that are needed only while 151,000 ids are read."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:  # only glibc has it
        malloc_trim(0)
