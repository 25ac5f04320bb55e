"""What a model's text is made of once it is parsed: content, reasoning, tool calls."""

import re
from dataclasses import dataclass

BLANK = re.compile(r"\s*")
"""White space, possibly none."""


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thinks by."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins; its arguments follow."""

    index: int
    """Its place among the calls of this answer, from 0 without gaps."""
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next characters of a call's arguments, a JSON object once they are all there."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is whole. One that the model was cut off in has no end."""

    index: int


Piece = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallEnd
"""One step of a parsed answer."""


def beginning_of(marker: str, text: str, at: int = 0) -> int:
    """Where the longest tail of `text[at:]` that begins `marker` starts, else `len(text)`."""
    for start in range(max(at, len(text) - len(marker) + 1), len(text)):
        if marker.startswith(text[start:]):
            return start
    return len(text)


def end_of(run: re.Pattern[str], text: str, at: int) -> int:
    """Where the run of characters ends that begins at `at`, or the text does."""
    found = run.match(text, at)
    assert found is not None, "a run may be empty"
    return found.end()
