"""Parsers that break one rule each, and the rules that must catch them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from openinfer_text import (
    Content,
    ParseContext,
    ParserFactory,
    ParserStream,
    Piece,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)


class BrokenParser:
    """Wrapper around a correct parser that changes nothing. Each subclass changes one thing.

    Args:
        parser: A correct parser.
    """

    name = "broken"

    def __init__(self, parser: ParserFactory) -> None:
        self.parser = parser
        self.markers = parser.markers

    def claims(self, template: str, /) -> bool:
        """See `ParserFactory.claims`."""
        return self.parser.claims(template)

    def start(self, context: ParseContext, /) -> ParserStream:
        """See `ParserFactory.start`."""
        return _Stream(self, context)

    def push(self, stream: "_Stream", text: str) -> Iterable[Piece]:
        """Returns the pieces of one text."""
        return stream.good.push(text)

    def finish(self, stream: "_Stream") -> Iterable[Piece]:
        """Returns the pieces at the end of the stream."""
        return stream.good.finish()


class _Stream:
    def __init__(self, parser: BrokenParser, context: ParseContext) -> None:
        self.good = parser.parser.start(context)
        self.held: list[Piece] = []
        self.num_open = 0
        self._parser = parser

    def push(self, text: str, /) -> list[Piece]:
        return list(self._parser.push(self, text))

    def finish(self) -> list[Piece]:
        return list(self._parser.finish(self))


class DropsBraces(BrokenParser):
    """Drops the last brace of arguments."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Removes the brace."""
        for piece in stream.good.push(text):
            if isinstance(piece, ToolCallArguments) and piece.text.endswith("}"):
                piece = replace(piece, text=piece.text[:-1])
            yield piece


class ForgetsBetweenPushes(BrokenParser):
    """Finishes the stream after every push, so that a marker cut in two is not found."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Parses each text on its own."""
        yield from stream.good.push(text)
        yield from stream.good.finish()


class CountsFromOne(BrokenParser):
    """Gives the first call the index 1."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Increments every index."""
        for piece in stream.good.push(text):
            if isinstance(piece, ToolCallStart | ToolCallArguments | ToolCallEnd):
                piece = replace(piece, index=piece.index + 1)
            yield piece


class HoldsArguments(BrokenParser):
    """Delivers arguments only when they are complete."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Joins the arguments of a call."""
        for piece in stream.good.push(text):
            if isinstance(piece, ToolCallArguments):
                stream.held.append(piece)
                continue
            if isinstance(piece, ToolCallEnd):
                yield from self.finish(stream)
            yield piece

    def finish(self, stream: _Stream) -> Iterable[Piece]:
        """Delivers the arguments."""
        texts = [piece.text for piece in stream.held if isinstance(piece, ToolCallArguments)]
        if texts:
            first = stream.held[0]
            assert isinstance(first, ToolCallArguments)
            yield ToolCallArguments(first.index, "".join(texts))
        stream.held.clear()


class HoldsContent(BrokenParser):
    """Delivers all content at the end."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Keeps content."""
        for piece in stream.good.push(text):
            if isinstance(piece, Content):
                stream.held.append(piece)
            else:
                yield piece

    def finish(self, stream: _Stream) -> Iterable[Piece]:
        """Delivers the content."""
        yield from self.push(stream, "")
        held = (*stream.held, *stream.good.finish())
        text = "".join(piece.text for piece in held if isinstance(piece, Content))
        if text:
            yield Content(text)


class EndsEveryCall(BrokenParser):
    """Reports a truncated call as complete."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Counts open calls."""
        for piece in stream.good.push(text):
            stream.num_open += isinstance(piece, ToolCallStart) - isinstance(piece, ToolCallEnd)
            if isinstance(piece, ToolCallStart):
                stream.held = [ToolCallEnd(piece.index)]
            yield piece

    def finish(self, stream: _Stream) -> Iterable[Piece]:
        """Ends the last call if it is open."""
        yield from stream.good.finish()
        if stream.num_open:
            yield from stream.held


BROKEN_PARSERS: Mapping[type[BrokenParser], tuple[str, ...]] = {
    DropsBraces: ("finds_content_reasoning_and_calls",),
    ForgetsBetweenPushes: ("result_is_independent_of_chunking",),
    CountsFromOne: ("call_pieces_are_in_order",),
    HoldsArguments: ("streams_arguments",),
    HoldsContent: ("streams_prose_without_delay",),
    EndsEveryCall: ("truncated_calls_are_incomplete",),
}
"""The rules that must catch each broken parser, given streams whose call arguments are streamed."""
