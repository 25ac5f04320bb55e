"""What every benchmark records besides its figures: the machine, the commit, and who else ran."""

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

# Of one core, by processes that are no part of a benchmark: with more, a window does not count.
MAX_OTHERS_PERCENT = 12


def machine() -> dict[str, Any]:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def commit() -> str:
    """Of the clone that this file is in; empty where there is none."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()


def tree(pid: int | None = None) -> list[psutil.Process]:
    """A process and all below it, this one by default."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


class OthersMeter:
    """How much of the cores ran neither a benchmark's processes nor nothing.

    Processes that are born meanwhile are ours from their first cycle; those that end are others'.
    """

    def __init__(self, ours: Callable[[], Iterable[psutil.Process]] = tree) -> None:
        self._ours = ours
        self._begun, self._busy, self._used = time.monotonic(), _busy_s(), self._used_s()

    def percent(self) -> float:
        """Since the beginning, of one core."""
        mine = sum(s - self._used.get(pid, 0.0) for pid, s in self._used_s().items())
        others = _busy_s() - self._busy - mine
        return round(100 * max(0.0, others) / (time.monotonic() - self._begun), 1)

    def _used_s(self) -> dict[int, float]:
        return {process.pid: sum(process.cpu_times()[:2]) for process in self._ours()}


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
