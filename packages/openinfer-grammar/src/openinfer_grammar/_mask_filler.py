"""The masks of one step, filled one after the other, or side by side where that pays."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from openinfer_grammar._constraint import Constraint
from openinfer_grammar.errors import GrammarFailed
from openinfer_grammar.llguidance._native_library import letting_go

MaskRow = npt.NDArray[np.uint32]
"""[num_words]: one row of `MaskRows`."""

_MAX_THREADS = 8
_EXPENSIVE_SECONDS = 0.0002
"""What a row has to take to be worth a thread: waking one, and taking turns with the interpreter
between two rows, takes up to a tenth of a millisecond."""


class MaskFiller:
    """Fills the masks of a step. For one thread, the step thread, which takes part.

    What a row took the last time tells what it will take: cheap rows are filled right here, and a
    few threads share expensive ones (a bounded repetition walks the whole vocabulary). There they
    take a native call each and microseconds of Python, while this thread does the same or waits.

    Args:
        num_threads: that fill at the same time, this one included; 8 at most.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_others = min(num_threads, _MAX_THREADS) - 1
        self._threads: ThreadPoolExecutor | None = None

    def fill(self, rows: Sequence[tuple[Constraint, MaskRow]]) -> dict[int, GrammarFailed]:
        """Fills every row.

        Args:
            rows: each with the constraint it is of, that is masking; none twice.

        Returns:
            By index, why a row's grammar cannot go on; what such a row holds is of no use.
        """
        failures: dict[int, GrammarFailed] = {}
        expensive = [
            i for i, (each, _) in enumerate(rows) if each.fill_seconds > _EXPENSIVE_SECONDS
        ]
        if min(self._num_others, len(expensive) - 1) <= 0:
            _fill_all(rows, deque(range(len(rows))), failures)
            return failures
        # The longest first: whoever is through takes the next.
        expensive.sort(key=lambda index: rows[index][0].fill_seconds, reverse=True)
        cheap = deque(set(range(len(rows))).difference(expensive))
        todo, num_others = deque(expensive), min(self._num_others, len(expensive) - 1)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._num_others, "openinfer-masks")
        others = [
            self._threads.submit(_fill_beside, rows, todo, failures) for _ in range(num_others)
        ]
        try:
            _fill_beside(rows, todo, failures)
            _fill_beside(rows, cheap, failures)
        finally:
            # A row that another thread is at must not be touched, also when this one has failed;
            # a thread that has not begun by now finds nothing to do and is not waited for.
            errors = [other.exception() for other in others if not other.cancel()]
        for error in filter(None, errors):
            raise error
        return failures

    def close(self) -> None:
        """Returns when the threads have ended. Idempotent."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


def _fill_beside(
    rows: Sequence[tuple[Constraint, MaskRow]], todo: deque[int], failures: dict[int, GrammarFailed]
) -> None:
    with letting_go():
        _fill_all(rows, todo, failures)


def _fill_all(
    rows: Sequence[tuple[Constraint, MaskRow]], todo: deque[int], failures: dict[int, GrammarFailed]
) -> None:
    while True:
        try:
            index = todo.popleft()
        except IndexError:
            return
        constraint, row = rows[index]
        try:
            constraint.fill_mask(row)
        except GrammarFailed as error:
            failures[index] = error
