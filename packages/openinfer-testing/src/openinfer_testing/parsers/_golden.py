"""Golden streams: outputs of models, and what a parser must find in them."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openinfer_text import AssistantTurn, OutputParser, ParseContext, ParserFactory, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsers:
    """Parsers of one family of models. Either may be None."""

    tools: ParserFactory | None = None
    reasoning: ParserFactory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenStream:
    """Output of a model, and the parts that a parser must find in it."""

    text: str
    content: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, str]] = ()
    """Name and arguments of each call."""
    num_whole: int | None = None
    """Number of leading calls that are complete. None if all are."""
    call_ids: Sequence[str] | None = None
    """Expected call ids. None if any ids are accepted."""
    is_streamed: bool = False
    """Whether arguments must arrive in several pieces."""
    turn: str = ""
    """Beginning of the output that the prompt already holds."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Definitions of the tools that the model was offered."""
    earlier_call_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """Parts that the parsers found in an output."""

    content: str
    reasoning: str
    calls: Sequence[tuple[str, str, str, bool]]
    """Id, name and arguments of each call, and whether it is complete."""
    reasons: tuple[str, str]
    """Finish reasons if the output stopped by itself, and if it was truncated."""


def pieces_of(parsers: Parsers, stream: GoldenStream, deltas: Iterable[str]) -> list[Piece]:
    """Returns the pieces of an output that arrives as `deltas`."""
    parser = _parser(parsers, stream)
    return [*(piece for delta in deltas for piece in parser.push(delta)), *parser.finish()]


def parse_output(parsers: Parsers, stream: GoldenStream, deltas: Iterable[str]) -> ParsedOutput:
    """Returns what the parsers find in an output that arrives as `deltas`."""
    parser, turn = _parser(parsers, stream), AssistantTurn()
    for delta in deltas:
        turn.add(parser.push(delta))
    turn.add(parser.finish())
    calls = [(call.call_id, call.name, call.arguments, call.is_whole) for call in turn.calls]
    reasons = (parser.finish_reason("stop"), parser.finish_reason("length"))
    return ParsedOutput(turn.content, turn.reasoning, calls, reasons)


def _parser(parsers: Parsers, stream: GoldenStream) -> OutputParser:
    ids = (f"call_{count}" for count in itertools.count())
    context = ParseContext(
        turn=stream.turn,
        tools=stream.tools,
        call_ids=stream.earlier_call_ids,
        new_call_id=lambda: next(ids),
    )
    return OutputParser(context, reasoning=parsers.reasoning, tools=parsers.tools)


def cuts_of(text: str) -> Iterator[list[str]]:
    """Yields the text cut in two at every byte, and then cut into single characters.

    A cut inside a character moves to its beginning: a detokenizer never delivers half a character.
    """
    data = text.encode()
    for at in range(len(data) + 1):
        first = data[:at].decode(errors="ignore")
        yield [first, text[len(first) :]]
    yield list(text)
