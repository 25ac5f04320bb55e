"""What a model's text is made of once it is parsed: content, reasoning, tool calls."""

from dataclasses import dataclass


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


def beginning_of(marker: str, text: str) -> int:
    """Where the longest tail of `text` that begins `marker` starts; `len(text)` without one."""
    for start in range(max(0, len(text) - len(marker) + 1), len(text)):
        if marker.startswith(text[start:]):
            return start
    return len(text)
