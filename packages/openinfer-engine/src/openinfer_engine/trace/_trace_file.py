"""A file of trace events that can be loaded at any moment.

The format is the Trace Event Format in JSON, which https://ui.perfetto.dev and chrome://tracing
open.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from openinfer_engine.errors import TraceFailed

_HEAD = b'{"displayTimeUnit":"ns","traceEvents":[\n'
_TAIL = b'\n],"otherData":{"clock":"CLOCK_MONOTONIC","num_dropped_events":%20d}}\n'
_MAX_NAMESAKES = 10_000
"""Upper bound of files with one name, told apart by numbers."""

_logger = logging.getLogger(__name__)


class TraceEvent(Struct, omit_defaults=True, gc=False):
    """One event, with the format's field names. Times are microseconds of the monotonic clock."""

    name: str
    ph: Literal["X", "b", "n", "e", "C", "M"]
    """Kind of the event. X: a span. b, n, e: begin, instant and end of spans that may overlap. C: a
    counter. M: the name of a process or track."""
    pid: int
    tid: int = 0
    ts: float | None = None
    dur: float | None = None
    cat: str = ""
    id: str = ""
    args: dict[str, Any] | None = None


class TraceFile:
    """A trace file, written until it is closed, is full or fails. Used by one thread.

    Every write ends with the end of the JSON text, which the next write overwrites. The file can
    therefore be loaded between two writes, after a kill and on a full disk. No existing file is
    overwritten: `trace.json` becomes `trace.1.json`, and so on.

    Args:
        path: path of the file; its folder must exist.
        max_bytes: upper bound of the file's size. Later events are dropped and counted.

    Attributes:
        path: path of the file, with the number that was added.
        num_dropped: events dropped because the file is full.

    Raises:
        TraceFailed: the file cannot be created.
    """

    def __init__(self, path: str | Path, max_bytes: int) -> None:
        self.num_dropped = 0
        self._max_bytes = max_bytes
        self._encoder = msgspec.json.Encoder()
        self._separator = b""
        self.path, self._fd = _create(Path(path).absolute())
        try:
            os.pwrite(self._fd, _HEAD + _TAIL % 0, 0)
        except OSError as error:
            self.close()
            raise _failure(self.path, error) from error
        self._end = len(_HEAD)

    def append(self, events: list[TraceEvent]) -> None:
        """Writes events.

        Raises:
            TraceFailed: the disk is full or failed. Events written before can still be loaded.
        """
        try:
            content = self._separator + self._encoder.encode(events)[1:-1]
        except UnicodeError as error:
            raise TraceFailed(f"trace {self.path}: an event cannot be written: {error}") from error
        has_room = self._end + len(content) + len(_TAIL % 0) <= self._max_bytes
        if not has_room:
            if not self.num_dropped:
                _logger.warning(
                    "the trace %s has reached %d bytes: later events are dropped",
                    self.path,
                    self._max_bytes,
                )
            self.num_dropped += len(events)
            content = b""
        try:
            self._write(content + _TAIL % self.num_dropped)
        except OSError as error:
            self._restore_end()
            raise _failure(self.path, error) from error
        self._end += len(content)
        if content:
            self._separator = b",\n"

    def close(self) -> None:
        """Closes the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _write(self, data: bytes) -> None:
        offset = self._end
        while data:
            written = os.pwrite(self._fd, data, offset)
            offset, data = offset + written, data[written:]

    def _restore_end(self) -> None:
        """Writes the end of the JSON text over existing bytes, which works on a full disk."""
        tail = _TAIL % self.num_dropped
        with suppress(OSError):
            os.pwrite(self._fd, tail, self._end)
            os.ftruncate(self._fd, self._end + len(tail))


def _create(path: Path) -> tuple[Path, int]:
    try:
        for number in range(_MAX_NAMESAKES):
            name = path.with_suffix(f".{number}{path.suffix}") if number else path
            with suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                return name, os.open(name, flags, 0o644)
    except OSError as error:
        raise _failure(path, error) from error
    raise TraceFailed(f"trace {path}: there are {_MAX_NAMESAKES} files of this name already")


def _failure(path: Path, error: OSError) -> TraceFailed:
    return TraceFailed(f"trace {path}: {error.strerror or error}")
