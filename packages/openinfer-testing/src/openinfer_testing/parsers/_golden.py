"""Golden streams: what a model writes, and what a client is to be told of it."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openinfer_text import AssistantTurn, OutputParser, ParseContext, ParserFactory, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsers:
    """The parsers of a family of models, either may be missing."""

    tools: ParserFactory | None = None
    reasoning: ParserFactory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenStream:
    """An answer as a model writes it, and what is in it."""

    text: str
    content: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, str]] = ()
    """Name and arguments of each."""
    num_whole: int | None = None
    """How many of the calls are whole, the first ones; None for all."""
    call_ids: Sequence[str] | None = None
    """Ids that the calls must have; None where any will do."""
    is_streamed: bool = False
    """Whether the arguments are there to see in many pieces."""
    turn: str = ""
    """What the prompt already holds of the answer."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Definitions that the model was offered."""
    earlier_call_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found in a stream."""

    content: str
    reasoning: str
    calls: Sequence[tuple[str, str, str, bool]]
    """Id, name, arguments, and whether the call is whole."""
    reasons: tuple[str, str]
    """The finish reasons of an answer that stopped by itself, and of one that was cut off."""


def pieces_of(parsers: Parsers, stream: GoldenStream, deltas: Iterable[str]) -> list[Piece]:
    """The pieces of a stream, or of a part of it, that arrives in the given texts."""
    parser = _parser(parsers, stream)
    return [*(piece for delta in deltas for piece in parser.push(delta)), *parser.finish()]


def answer(parsers: Parsers, stream: GoldenStream, deltas: Iterable[str]) -> Answer:
    """What a client is told of a stream, or of a part of it."""
    parser, turn = _parser(parsers, stream), AssistantTurn()
    for delta in deltas:
        turn.add(parser.push(delta))
    turn.add(parser.finish())
    calls = [(call.call_id, call.name, call.arguments, call.is_whole) for call in turn.calls]
    reasons = (parser.finish_reason("stop"), parser.finish_reason("length"))
    return Answer(turn.content, turn.reasoning, calls, reasons)


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
    """The text in two parts, cut at every byte, and in single characters.

    A byte inside a character comes with the rest of it, as a detokeniser has it: the first part
    ends before the character.
    """
    data = text.encode()
    for at in range(len(data) + 1):
        first = data[:at].decode(errors="ignore")
        yield [first, text[len(first) :]]
    yield list(text)
