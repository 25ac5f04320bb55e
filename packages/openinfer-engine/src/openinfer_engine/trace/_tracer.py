"""The recorder of one trace: spans and counters of the loop, the executor and clients."""

import logging
import os
from collections.abc import Callable
from typing import Any

from openinfer_engine.errors import TraceFailed
from openinfer_engine.trace._trace_file import TraceEvent, TraceFile

MAX_BUFFERED_EVENTS = 512

Details = dict[str, Any] | None
"""Values shown with a span, by name."""

_logger = logging.getLogger(__name__)


class Tracer:
    """Records the events of one trace and writes them in batches. Used by the step thread.

    Recording an event takes well under a microsecond and never fails. Once the file has failed,
    later events are ignored.

    Args:
        file: written to; closed by `close`.
        clock: monotonic seconds, the same clock in all processes of a machine.
        has_kernels: whether the executor shall record single kernels, which slows steps down.

    Attributes:
        path: path of the file.
        clock: as given.
        has_kernels: as given.
        failure: why the trace ended on its own; None while it is being written.
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
        """Whether enough events are buffered that `flush` should be called."""
        return len(self._events) >= MAX_BUFFERED_EVENTS

    @property
    def num_dropped(self) -> int:
        """Events dropped because the file is full."""
        return self._file.num_dropped

    def name_process(self, pid: int, name: str) -> None:
        """Records a process's name, the first time it is given."""
        if pid not in self._processes:
            self._processes.add(pid)
            args = {"name": f"{name} ({pid})"}
            self._events.append(TraceEvent("process_name", "M", pid, args=args))

    def track(self, name: str) -> int:
        """Returns the id of this process's track of that name.

        Tracks are shown in order of first use.
        """
        tid = self._tracks.get(name)
        if tid is None:
            tid = self._tracks[name] = len(self._tracks) + 1
            self._events += (
                TraceEvent("thread_name", "M", self._pid, tid, args={"name": name}),
                TraceEvent("thread_sort_index", "M", self._pid, tid, args={"sort_index": tid}),
            )
        return tid

    def span(self, track: int, name: str, begin: float, end: float, args: Details = None) -> None:
        """Records a span. Spans of one track nest, and the outer span is recorded first.

        Args:
            track: id from `track`.
            name: name of the span.
            begin: in seconds of `clock`.
            end: in seconds of `clock`.
            args: details shown with the span.
        """
        ts = _microseconds(begin)
        dur = _microseconds(end) - ts
        self._events.append(TraceEvent(name, "X", self._pid, track, ts, dur, args=args))

    def begin(
        self, kind: str, key: str, name: str, at: float, args: Details = None, pid: int = 0
    ) -> None:
        """Begins a span that may overlap others of its kind. Spans of one kind and key nest.

        Args:
            kind: category, such as `request`.
            key: id within the category, such as a request id.
            name: name of the span; `end` repeats it.
            at: in seconds of `clock`.
            args: details shown with the span.
            pid: process of the span; 0: this one.
        """
        self._overlapping("b", kind, key, name, at, args, pid)

    def instant(self, kind: str, key: str, name: str, at: float) -> None:
        """Records an instant within the open spans of one kind and key."""
        self._overlapping("n", kind, key, name, at)

    def end(
        self, kind: str, key: str, name: str, at: float, args: Details = None, pid: int = 0
    ) -> None:
        """Ends a span that `begin` began."""
        self._overlapping("e", kind, key, name, at, args, pid)

    def counter(self, name: str, at: float, values: dict[str, int]) -> None:
        """Records new values of a counter, drawn stacked."""
        ts = _microseconds(at)
        self._events.append(TraceEvent(name, "C", self._pid, ts=ts, args=values))

    def flush(self) -> None:
        """Writes the buffered events. If the file fails, logs that and ends the trace."""
        events, self._events = self._events, []
        if not events or self.failure is not None:
            return
        try:
            self._file.append(events)
        except TraceFailed as error:
            self.failure = str(error)
            _logger.error("%s; the trace ends here, serving continues", error)

    def close(self) -> None:
        """Writes the buffered events and closes the file. Idempotent."""
        self.flush()
        self._file.close()

    def _overlapping(
        self, ph: Any, kind: str, key: str, name: str, at: float, args: Details = None, pid: int = 0
    ) -> None:
        ts = _microseconds(at)
        event = TraceEvent(name, ph, pid or self._pid, ts=ts, cat=kind, id=key, args=args)
        self._events.append(event)


def _microseconds(seconds: float) -> float:
    """Rounds to an eighth of a microsecond. Differences of such floats are exact, so spans nest."""
    return round(seconds * 8e6) / 8
