"""`MaskFiller`: the masks of one step, filled in parallel where that pays."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from openinfer_grammar._constraint import Constraint
from openinfer_grammar.errors import GrammarFailed
from openinfer_grammar.llguidance._native_library import releasing_gil

MaskRow = npt.NDArray[np.uint32]
"""[num_words]: one row of `MaskRows`."""

_MAX_THREADS = 8
_EXPENSIVE_SECONDS = 0.0002
"""Seconds of CPU time; rows that take longer are filled on other threads. Waking a thread and
passing the GIL between two rows takes up to 0.1 ms."""


class MaskFiller:
    """Filler of a step's masks, called by the step thread, which fills rows itself.

    The last fill time of a row predicts the next one. Cheap rows are filled on the step thread. A
    few threads share expensive rows (a bounded repetition walks the whole vocabulary), each with
    one native call and microseconds of Python per row.

    Args:
        num_threads: number of threads that fill at the same time, the step thread included; at
            most 8.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_others = min(num_threads, _MAX_THREADS) - 1
        self._threads: ThreadPoolExecutor | None = None

    def fill(self, rows: Sequence[tuple[Constraint, MaskRow]]) -> dict[int, GrammarFailed]:
        """Fills every row.

        Args:
            rows: constraints that are masking, each once, with the row to fill.

        Returns:
            The errors of failed grammars by row index; such a row must not be used.
        """
        failures: dict[int, GrammarFailed] = {}
        expensive = [
            i for i, (each, _) in enumerate(rows) if each.fill_seconds > _EXPENSIVE_SECONDS
        ]
        if min(self._num_others, len(expensive) - 1) <= 0:
            _fill_all(rows, deque(range(len(rows))), failures)
            return failures
        # The most expensive rows come first, and a thread that has finished a row takes the next
        # one, so that all threads end at about the same time.
        expensive.sort(key=lambda index: rows[index][0].fill_seconds, reverse=True)
        cheap = deque(set(range(len(rows))).difference(expensive))
        todo, num_others = deque(expensive), min(self._num_others, len(expensive) - 1)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._num_others, "openinfer-masks")
        others = [
            self._threads.submit(_fill_without_gil, rows, todo, failures) for _ in range(num_others)
        ]
        try:
            _fill_without_gil(rows, todo, failures)
            _fill_without_gil(rows, cheap, failures)
        finally:
            # Rows that other threads are filling must not be touched, even if this thread failed. A
            # thread that has not started by now has nothing to do, so it is cancelled.
            errors = [other.exception() for other in others if not other.cancel()]
        for error in filter(None, errors):
            raise error
        return failures

    def close(self) -> None:
        """Returns when the threads have ended. Idempotent."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


def _fill_without_gil(
    rows: Sequence[tuple[Constraint, MaskRow]], todo: deque[int], failures: dict[int, GrammarFailed]
) -> None:
    with releasing_gil():
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
