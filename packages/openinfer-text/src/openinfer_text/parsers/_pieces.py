"""Pieces of a parsed output: content, reasoning, tool calls."""

import re
from dataclasses import dataclass

BLANK = re.compile(r"\s*")
"""White space, possibly none."""


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the response itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Start of a tool call; its arguments follow."""

    index: int
    """Index among the calls of this output, from 0 without gaps."""
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next characters of a call's arguments; all of them together are a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """End of a complete call. A call that was cut off has no end."""

    index: int


Piece = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallEnd
"""One piece of a parsed output."""


def beginning_of(marker: str, text: str, at: int = 0) -> int:
    """Returns the start of the longest tail of `text[at:]` that begins `marker`, or `len(text)`."""
    for start in range(max(at, len(text) - len(marker) + 1), len(text)):
        if marker.startswith(text[start:]):
            return start
    return len(text)


def end_of(run: re.Pattern[str], text: str, at: int) -> int:
    """Returns the end of the run of these characters that begins at `at`."""
    found = run.match(text, at)
    assert found is not None, "a run may be empty"
    return found.end()
