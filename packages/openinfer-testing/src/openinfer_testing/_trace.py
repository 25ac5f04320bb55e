"""Reader of trace files. It checks that spans nest and end, and that tracks have names."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSpan:
    """Span of a trace. Times are in microseconds.

    Attributes:
        track: Names of process and track, such as `engine steps`. Spans that may overlap have a
            track of their own for each id, such as `engine request ID`.
        name: Name of the span.
        begin: Time at which it begins.
        end: Time at which it ends.
        args: Arguments of its event.
        depth: Number of spans of the same track that contain it.
    """

    track: str
    name: str
    begin: float
    end: float
    args: dict[str, Any]
    depth: int

    def holds(self, other: "TracedSpan") -> bool:
        """Returns whether `other` lies within this span."""
        return self.begin <= other.begin and other.end <= self.end


@dataclass(slots=True)
class ReadTrace:
    """Content of a trace file, ordered by time."""

    spans: list[TracedSpan] = field(default_factory=list)
    notes: list[tuple[str, str, float]] = field(default_factory=list)
    """Instant events: (track, name, time in microseconds)."""
    counters: dict[str, list[tuple[float, dict[str, int]]]] = field(default_factory=dict)
    num_dropped: int = 0

    def on(self, track: str) -> list[TracedSpan]:
        """Returns the spans of the tracks whose name begins with `track`."""
        return [span for span in self.spans if span.track.startswith(track)]


def read_trace(path: str | Path) -> ReadTrace:
    """Reads a trace file and checks it.

    Raises:
        AssertionError: Spans do not nest, a span has no end, or a track has no name.
        ValueError: The file is not JSON.
    """
    document = json.loads(Path(path).read_bytes())
    events = document["traceEvents"]
    trace = ReadTrace(num_dropped=document["otherData"]["num_dropped_events"])
    names = {
        (event["name"], event["pid"], event.get("tid", 0)): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and "name" in event["args"]
    }
    timed = sorted((e for e in events if e["ph"] != "M"), key=lambda event: float(event["ts"]))
    begun: dict[str, list[dict[str, Any]]] = defaultdict(list)
    open_spans: dict[str, list[float]] = defaultdict(list)
    for event in timed:
        process = names["process_name", event["pid"], 0].partition(" (")[0]
        kind, at = event["ph"], event["ts"]
        if kind == "C":
            trace.counters.setdefault(event["name"], []).append((at, event["args"]))
        elif kind == "X":
            track = f"{process} {names['thread_name', event['pid'], event['tid']]}"
            ends = open_spans[track]
            while ends and ends[-1] <= at:
                ends.pop()
            end = at + event["dur"]
            assert event["dur"] >= 0, event
            assert not ends or end <= ends[-1], f"{event} does not nest"
            trace.spans.append(_span(track, event, at, end, len(ends)))
            ends.append(end)
        else:
            _overlapping(trace, event, f"{process} {event['cat']} {event['id']}", begun)
    assert not any(begun.values()), f"spans without an end: {begun}"
    trace.spans.sort(key=lambda span: (span.begin, span.depth))
    return trace


def _overlapping(
    trace: ReadTrace, event: dict[str, Any], track: str, begun: dict[str, list[dict[str, Any]]]
) -> None:
    kind, at = event["ph"], event["ts"]
    if kind == "b":
        begun[track].append(event)
    elif kind == "n":
        trace.notes.append((track, event["name"], at))
    else:
        assert kind == "e", event
        assert begun[track], f"{event} ends a span that has not begun"
        first = begun[track].pop()
        assert first["name"] == event["name"], f"{event} ends {first}"
        merged = first | {"args": first.get("args", {}) | event.get("args", {})}
        trace.spans.append(_span(track, merged, first["ts"], at, len(begun[track])))


def _span(track: str, event: dict[str, Any], begin: float, end: float, depth: int) -> TracedSpan:
    return TracedSpan(
        track=track,
        name=event["name"],
        begin=begin,
        end=end,
        args=event.get("args", {}),
        depth=depth,
    )
