"""Jobs in forked processes: compiling a kernel holds the GIL, so threads would take turns."""

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
    """Returns how many processes to run side by side on this machine, at least one.

    The upper bounds are the cores that this process may use, the container's CPU quota, and the
    available memory.

    Args:
        bytes_each: Memory that each process may take.
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
    """Returns the available memory: the machine's, and at most what the container has left."""
    machine = _numbers(_MEMINFO).get("MemAvailable:")
    available = sys.maxsize if machine is None else machine * 1024
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        pages = _numbers(_CGROUP / "memory.stat")
        # The kernel drops cached pages of files when memory is needed.
        cached = pages.get("active_file", 0) + pages.get("inactive_file", 0)
        available = min(available, int(limit) - int(used) + cached)
    return available


def _numbers(path: Path) -> dict[str, int]:
    """Reads a file that has a name and a number in each line."""
    lines = (line.split() for line in _read(path).splitlines())
    return {words[0]: int(words[1]) for words in lines}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # not Linux, or not in a container
        return ""


class ForkedJob(Generic[T]):
    """A job in a forked process, which is killed when the thread that started it ends.

    The process is a copy of this one without its other threads. The job must not use a device that
    this process uses, nor take a lock that another thread may hold.

    Attributes:
        connection: Becomes readable when the job is done or its process has died.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        """Starts the job.

        Args:
            work: Returns the result, which is pickled.
        """
        self.connection, sender = _context.Pipe(duplex=False)
        self._process: BaseProcess = _context.Process(target=_run, args=(work, sender))
        with warnings.catch_warnings():
            # Python warns of locks that other threads may hold. A job takes none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        sender.close()

    def result(self, timeout_s: float | None = None) -> T:
        """Waits for the job and returns its result. Called once.

        Raises:
            ChildProcessError: The process died without a result, or the job took longer.
        """
        try:
            if not self.connection.poll(timeout_s):
                raise ChildProcessError(f"{self._process.name} takes more than {timeout_s:g} s")
            return self._received()
        finally:
            self.close()

    def _received(self) -> T:
        try:
            done: T = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError) as error:  # OSError: killed while it sent the result
            raise ChildProcessError(f"{self._process.name} has ended early") from error
        return done

    def close(self) -> None:
        """Kills the process if it still runs."""
        self._process.kill()
        self._process.join()
        self.connection.close()


class ForkedJobs(Generic[T]):
    """Jobs in forked processes, one process for each job, at most `num_processes` at a time.

    A pool of long-lived processes would lose all its jobs when the compiler crashes in one of them.
    """

    def __init__(self, num_processes: int) -> None:
        """Creates the queue of jobs. Processes are started by `add`."""
        self._limit = num_processes
        self._waiting: deque[tuple[int, Callable[[], T]]] = deque()
        self._running: dict[Connection, tuple[int, ForkedJob[T]]] = {}
        self._done: dict[int, T | ChildProcessError] = {}
        self._num_added = 0

    def add(self, work: Callable[[], T]) -> None:
        """Adds a job, and starts waiting jobs while there are fewer than the limit."""
        self._waiting.append((self._num_added, work))
        self._num_added += 1
        self._advance(timeout_s=0)

    def results(self) -> Iterator[T | ChildProcessError]:
        """Yields the results of all jobs, in the order of `add`.

        The result of a job whose process died or could not be started is a `ChildProcessError`. It
        is not raised, since the other jobs are not affected.
        """
        for index in range(self._num_added):
            while index not in self._done:
                self._advance(timeout_s=None)
            yield self._done[index]

    def _advance(self, timeout_s: float | None) -> None:
        """Collects finished jobs, waiting for one at most `timeout_s`, and starts waiting ones."""
        ready = wait(self._running, timeout_s) if len(self._running) else []
        for connection in ready:
            assert isinstance(connection, Connection)
            index, job = self._running.pop(connection)
            try:
                self._done[index] = job.result()
            except ChildProcessError as error:
                self._done[index] = error
        while self._waiting and len(self._running) < self._limit:
            self._start(*self._waiting.popleft())

    def _start(self, index: int, work: Callable[[], T]) -> None:
        try:
            job = ForkedJob(work)
        except OSError as error:  # no memory, or too many processes
            self._done[index] = ChildProcessError(f"no process can be started: {error}")
        else:
            self._running[job.connection] = (index, job)


def _run(work: Callable[[], Any], sender: Connection) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sender.send_bytes(pickle.dumps(work()))
