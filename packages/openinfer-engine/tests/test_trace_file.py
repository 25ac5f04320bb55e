"""The trace file, and the tracer that writes it."""

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openinfer_engine import TraceFailed, Tracer
from openinfer_engine.trace._trace_file import TraceEvent, TraceFile
from openinfer_testing import read_trace

ROOM = 1 << 20


def events(num: int, first: int = 0) -> list[TraceEvent]:
    return [
        TraceEvent(f"é{n}", "C", 1, ts=float(n), args={"a": n}) for n in range(first, first + num)
    ]


def written(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
    return found


@contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """Limits the size of all files to `num_bytes`: writes end short, then fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[Callable[..., TraceFile]]:
    files: list[TraceFile] = []

    def make(name: str = "trace.json", max_bytes: int = ROOM) -> TraceFile:
        files.append(TraceFile(tmp_path / name, max_bytes))
        return files[-1]

    yield make
    for file in files:
        file.close()


def test_the_file_is_whole_after_every_write(open_file: Callable[..., TraceFile]) -> None:
    file = open_file()
    assert written(file.path) == []
    for n in range(5):
        file.append(events(3, 3 * n))
        assert [event["name"] for event in written(file.path)] == [
            f"é{i}" for i in range(3 * n + 3)
        ]
    file.close()
    file.close()


def test_what_exists_is_not_overwritten(
    open_file: Callable[..., TraceFile], tmp_path: Path
) -> None:
    (tmp_path / "trace.json").write_text("mine")
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link.json").symlink_to(tmp_path / "target")
    assert open_file().path == tmp_path / "trace.1.json"
    assert open_file().path == tmp_path / "trace.2.json"
    assert open_file("link.json").path == tmp_path / "link.1.json"
    assert (tmp_path / "trace.json").read_text() == (tmp_path / "target").read_text() == "mine"


def test_a_file_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(TraceFailed, match=r"nowhere/t\.json: No such file or directory"):
        TraceFile(tmp_path / "nowhere" / "t.json", ROOM)


def test_the_file_keeps_its_bound_and_says_what_it_lacks(
    open_file: Callable[..., TraceFile], caplog: pytest.LogCaptureFixture
) -> None:
    file = open_file(max_bytes=4000)
    for n in range(40):
        file.append(events(10, 10 * n))
        assert os.path.getsize(file.path) <= 4000
    kept = written(file.path)
    assert 40 <= len(kept) < 400
    assert [event["args"]["a"] for event in kept] == list(range(len(kept)))
    assert file.num_dropped == 400 - len(kept)
    assert json.loads(file.path.read_bytes())["otherData"]["num_dropped_events"] == file.num_dropped
    assert len([record for record in caplog.records if "are dropped" in record.message]) == 1


@pytest.mark.parametrize("limit", [3000, 3050, 3100, 3333])
def test_a_full_disk_leaves_what_was_written(
    open_file: Callable[..., TraceFile], limit: int
) -> None:
    file = open_file()
    file.append(events(20))

    def fill() -> None:
        for n in range(1, 40):
            file.append(events(7, 100 * n))

    with full_disk(limit), pytest.raises(TraceFailed, match="File too large"):
        fill()
    assert len(written(file.path)) >= 20
    assert os.path.getsize(file.path) <= limit


def test_a_file_that_fails_ends_the_trace_and_nothing_else(
    open_file: Callable[..., TraceFile], caplog: pytest.LogCaptureFixture
) -> None:
    tracer = Tracer(open_file(), lambda: 1.0)
    track = tracer.track("t")
    with full_disk(2000):
        for _ in range(50):
            tracer.span(track, "s", 1.0, 2.0)
            tracer.flush()
    assert tracer.failure is not None
    assert "File too large" in tracer.failure
    assert len(caplog.records) == 1
    tracer.close()
    assert len(read_trace(tracer.path).spans) > 3


def test_a_name_that_is_no_text_ends_the_trace_and_nothing_else(
    open_file: Callable[..., TraceFile],
) -> None:
    tracer = Tracer(open_file(), lambda: 1.0)
    tracer.span(tracer.track("t"), "fine", 1.0, 2.0)
    tracer.flush()
    tracer.span(tracer.track("t"), "\udc80", 1.0, 2.0)
    tracer.close()
    assert tracer.failure is not None
    assert "cannot be written" in tracer.failure
    assert [span.name for span in read_trace(tracer.path).spans] == ["fine"]


def test_adjacent_spans_stay_adjacent(open_file: Callable[..., TraceFile]) -> None:
    """Begin and end are rounded so that neighbouring spans do not overlap and spans nest."""
    tracer = Tracer(open_file(max_bytes=32 << 20), lambda: 0.0)
    track, at = tracer.track("t"), 54321.987654321
    for n in range(2000):
        ends = [at + 1e-6 * (n % 7 + 0.3) * (i + 1) for i in range(3)]
        tracer.span(track, "outer", at, ends[-1])
        for begin, end in zip([at, *ends], ends, strict=False):
            tracer.span(track, "inner", begin, end)
        at = ends[-1]
    tracer.close()
    trace = read_trace(tracer.path)
    assert [span.depth for span in trace.spans].count(0) == 2000
    assert [span.depth for span in trace.spans].count(1) == 6000
    assert trace.spans[-1].end == pytest.approx(at * 1e6, abs=0.2)
    # Viewers count in whole nanoseconds.
    assert all((span.begin * 1000).is_integer() for span in trace.spans)
