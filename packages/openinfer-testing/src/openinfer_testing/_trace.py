"""A trace as its viewers read it, and what must be true of every one."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSpan:
    """Something that took a while, in microseconds.

    Attributes:
        track: process and track by name, `engine steps`; of what overlaps, `engine request ID`.
        name: what it was.
        begin: when.
        end: when.
        args: more about it.
        depth: spans of the track around it.
    """

    track: str
    name: str
    begin: float
    end: float
    args: dict[str, Any]
    depth: int

    def holds(self, other: "TracedSpan") -> bool:
        """Whether the other one lies within this one."""
        return self.begin <= other.begin and other.end <= self.end


@dataclass(slots=True)
class ReadTrace:
    """What a file of trace events shows, in order of time."""

    spans: list[TracedSpan] = field(default_factory=list)
    notes: list[tuple[str, str, float]] = field(default_factory=list)
    """(track, name, microseconds)."""
    counters: dict[str, list[tuple[float, dict[str, int]]]] = field(default_factory=dict)
    num_dropped: int = 0

    def on(self, track: str) -> list[TracedSpan]:
        """The spans of a track, or of all whose name begins so."""
        return [span for span in self.spans if span.track.startswith(track)]


def read_trace(path: str | Path) -> ReadTrace:
    """Reads a trace and checks it.

    Raises:
        AssertionError: spans that do not nest, begins without ends, tracks without names.
        ValueError: no JSON.
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
    assert not any(begun.values()), f"never ended: {begun}"
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
        assert begun[track], f"{event} ends what has not begun"
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
