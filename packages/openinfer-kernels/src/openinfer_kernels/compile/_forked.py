"""Work done by forked processes, for what holds the interpreter while it computes."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_context = multiprocessing.get_context("fork")


def num_processes(bytes_each: int) -> int:
    """How many processes compute side by side here, at least one.

    There are no more than cores that this process may use, than a container's CPU quota, and than
    there is memory for.

    Args:
        bytes_each: Memory that each may take.
    """
    return max(1, min(_num_cores(), _available_bytes() // bytes_each))


def _num_cores() -> int:
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    return min(cores, int(quota) // int(period)) if quota.isdigit() else cores


def _available_bytes() -> int:
    """Memory that can be had now: of the machine, and below the container's limit."""
    machine = _numbers(_MEMINFO).get("MemAvailable:")
    available = sys.maxsize if machine is None else machine * 1024
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        pages = _numbers(_CGROUP / "memory.stat")
        cached = pages.get("active_file", 0) + pages.get("inactive_file", 0)  # given up if needed
        available = min(available, int(limit) - int(used) + cached)
    return available


def _numbers(path: Path) -> dict[str, int]:
    """Name to number of a file with one of each a line."""
    lines = (line.split() for line in _read(path).splitlines())
    return {words[0]: int(words[1]) for words in lines}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # another system, or no container
        return ""


class Forked(Generic[T]):
    """A piece of work in a process of its own, which ends with the thread that began it.

    The process is a copy of this one without its other threads. It must use no device that this
    one uses, and take no lock that another thread may hold.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        """Begins the work."""
        self.result, sender = _context.Pipe(duplex=False)
        self._process: BaseProcess = _context.Process(target=_run, args=(work, sender))
        with warnings.catch_warnings():
            # Of the locks that other threads may hold, which Python warns of, none is taken there.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        sender.close()

    def take(self, timeout_s: float | None = None) -> T:
        """What the work came to, once it is done.

        Raises:
            ChildProcessError: the process has ended without a result, or takes longer.
        """
        try:
            if not self.result.poll(timeout_s):
                raise ChildProcessError(f"{self._process.name} takes more than {timeout_s:g} s")
            return self._received()
        finally:
            self.close()

    def _received(self) -> T:
        try:
            done: T = pickle.loads(self.result.recv_bytes())
        except (EOFError, OSError) as error:  # the latter of a process that was killed as it spoke
            raise ChildProcessError(f"{self._process.name} has ended early") from error
        return done

    def close(self) -> None:
        """Ends the process if it still runs."""
        self._process.kill()
        self._process.join()
        self.result.close()


class ForkedJobs(Generic[T]):
    """Pieces of work, each in a process of its own, so many at a time."""

    def __init__(self, num_processes: int) -> None:
        """Nothing runs yet."""
        self._limit = num_processes
        self._waiting: deque[tuple[int, Callable[[], T]]] = deque()
        self._running: dict[Connection, tuple[int, Forked[T]]] = {}
        self._done: dict[int, T | ChildProcessError] = {}
        self._num_added = 0

    def add(self, work: Callable[[], T]) -> None:
        """Begins the work, now or when there is room. Of other work that fails it says nothing."""
        self._waiting.append((self._num_added, work))
        self._num_added += 1
        self._go_on(timeout_s=0)

    def results(self) -> Iterator[T | ChildProcessError]:
        """What all work so far comes to, in the order of `add`.

        Work whose process ends without a result, or cannot be started, comes to a
        `ChildProcessError`, which is not raised: it says nothing of the other work.
        """
        for index in range(self._num_added):
            while index not in self._done:
                self._go_on(timeout_s=None)
            yield self._done[index]

    def _go_on(self, timeout_s: float | None) -> None:
        ready = wait(self._running, timeout_s) if len(self._running) else []
        for result in ready:
            assert isinstance(result, Connection)
            index, job = self._running.pop(result)
            try:
                self._done[index] = job.take()
            except ChildProcessError as error:
                self._done[index] = error
        while self._waiting and len(self._running) < self._limit:
            self._start(*self._waiting.popleft())

    def _start(self, index: int, work: Callable[[], T]) -> None:
        try:
            job = Forked(work)
        except OSError as error:  # no memory, or too many processes
            self._done[index] = ChildProcessError(f"no process can be started: {error}")
        else:
            self._running[job.result] = (index, job)


def _run(work: Callable[[], Any], sender: Connection) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sender.send_bytes(pickle.dumps(work()))
