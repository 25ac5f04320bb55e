"""Meter for the CPU time of processes that do not belong to the running benchmark."""

import time
from collections.abc import Callable, Iterable

import psutil

MAX_OTHERS_PERCENT = 12
"""Upper bound for other processes' CPU time, in percent of one core, while a window counts."""


def tree(pid: int | None = None) -> list[psutil.Process]:
    """Returns a process and all its descendants. The default is this process."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


class OthersMeter:
    """CPU time of processes outside the benchmark, since the meter was made.

    A process that starts meanwhile counts as the benchmark's from its first cycle. A process that
    ends meanwhile counts as foreign.
    """

    def __init__(self, ours: Callable[[], Iterable[psutil.Process]] = tree) -> None:
        self._ours = ours
        self._begun, self._busy, self._used = time.monotonic(), _busy_s(), self._used_s()

    def percent(self) -> float:
        """Returns the mean use since the beginning, in percent of one core."""
        mine = sum(s - self._used.get(pid, 0.0) for pid, s in self._used_s().items())
        others = _busy_s() - self._busy - mine
        return round(100 * max(0.0, others) / (time.monotonic() - self._begun), 1)

    def _used_s(self) -> dict[int, float]:
        return {process.pid: sum(process.cpu_times()[:2]) for process in self._ours()}


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
