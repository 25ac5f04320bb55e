"""What the loop, the executor and clients say to a trace: spans, counters, things that overlap."""

import logging
import os
from collections.abc import Callable
from typing import Any

from openinfer_engine.errors import TraceFailed
from openinfer_engine.trace._trace_file import TraceEvent, TraceFile

MAX_BUFFERED_EVENTS = 512

_logger = logging.getLogger(__name__)


class Tracer:
    """Collects the events of one trace and writes them in batches. Use from the step thread.

    Recording costs well under a microsecond and never fails. A trace whose file fails has ended:
    what is recorded later is forgotten.

    Args:
        file: closed by `close`.
        clock: monotonic seconds, the same clock in all processes of a machine.
        has_kernels: whether the executor is asked for single kernels, at their price.

    Attributes:
        path: of the file.
        clock: as given.
        has_kernels: as given.
        failure: why the trace has ended by itself; None while it goes on.
    """

    def __init__(
        self, file: TraceFile, clock: Callable[[], float], *, has_kernels: bool = False
    ) -> None:
        self.path = file.path
        self.clock = clock
        self.has_kernels = has_kernels
        self.failure: str | None = None
        self._file = file
        self._pid = os.getpid()
        self._events: list[TraceEvent] = []
        self._tracks: dict[str, int] = {}
        self._processes: set[int] = set()
        self.name_process(self._pid, "engine")

    @property
    def is_due(self) -> bool:
        """Whether so many events wait that `flush` should be called."""
        return len(self._events) >= MAX_BUFFERED_EVENTS

    @property
    def num_dropped(self) -> int:
        """Events that found no room in the file."""
        return self._file.num_dropped

    def name_process(self, pid: int, name: str) -> None:
        """Says what a process is, the first time."""
        if pid not in self._processes:
            self._processes.add(pid)
            args = {"name": f"{name} ({pid})"}
            self._events.append(TraceEvent("process_name", "M", pid, args=args))

    def track(self, name: str) -> int:
        """A track of this process by its name; tracks are shown in the order of first use."""
        tid = self._tracks.get(name)
        if tid is None:
            tid = self._tracks[name] = len(self._tracks) + 1
            self._events += (
                TraceEvent("thread_name", "M", self._pid, tid, args={"name": name}),
                TraceEvent("thread_sort_index", "M", self._pid, tid, args={"sort_index": tid}),
            )
        return tid

    def span(
        self, track: int, name: str, begin: float, end: float, args: dict[str, Any] | None = None
    ) -> None:
        """Something that took a while. Spans of one track nest, the outer one is told first.

        Args:
            track: of `track`.
            name: what it was.
            begin: in seconds of `clock`.
            end: likewise.
            args: more about it.
        """
        ts = _microseconds(begin)
        self._events.append(
            TraceEvent(name, "X", self._pid, track, ts, _microseconds(end) - ts, args=args)
        )

    def open(
        self,
        kind: str,
        key: str,
        name: str,
        at: float,
        args: dict[str, Any] | None = None,
        *,
        pid: int | None = None,
    ) -> None:
        """Something begins that others of its kind overlap; those of one key nest.

        Args:
            kind: what is grouped.
            key: which one of the kind.
            name: what begins; `shut` says the same.
            at: in seconds of `clock`.
            args: more about it.
            pid: the process it belongs to, if not this one.
        """
        self._overlapping("b", kind, key, name, at, args, pid)

    def note(self, kind: str, key: str, name: str, at: float) -> None:
        """Something happens within what is open."""
        self._overlapping("n", kind, key, name, at, None, None)

    def shut(
        self,
        kind: str,
        key: str,
        name: str,
        at: float,
        args: dict[str, Any] | None = None,
        *,
        pid: int | None = None,
    ) -> None:
        """What `open` began has ended."""
        self._overlapping("e", kind, key, name, at, args, pid)

    def counter(self, name: str, at: float, values: dict[str, int]) -> None:
        """Values from now on, drawn one above the other."""
        ts = _microseconds(at)
        self._events.append(TraceEvent(name, "C", self._pid, ts=ts, args=values))

    def flush(self) -> None:
        """Writes what has been recorded. A file that fails ends the trace, and is logged."""
        events, self._events = self._events, []
        if not events or self.failure is not None:
            return
        try:
            self._file.append(events)
        except TraceFailed as error:
            self.failure = str(error)
            _logger.error("%s; the trace ends here, serving goes on", error)

    def close(self) -> None:
        """Writes the rest and closes the file. Idempotent."""
        self.flush()
        self._file.close()

    def _overlapping(
        self,
        ph: Any,
        kind: str,
        key: str,
        name: str,
        at: float,
        args: dict[str, Any] | None,
        pid: int | None,
    ) -> None:
        self._events.append(
            TraceEvent(
                name, ph, pid or self._pid, ts=_microseconds(at), cat=kind, id=key, args=args
            )
        )


def _microseconds(seconds: float) -> float:
    """To an eighth: differences and nanoseconds of such numbers are exact, so that spans nest."""
    return round(seconds * 8e6) / 8
