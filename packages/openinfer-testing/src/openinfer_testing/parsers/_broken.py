"""Parsers that break one rule each, and the rules that catch them."""

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
    """Passes everything on; subclasses change one thing.

    Args:
        parser: a good one.
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
        """What stands in for a push of a good stream."""
        return stream.good.push(text)

    def finish(self, stream: "_Stream") -> Iterable[Piece]:
        """What stands in for the end of a good stream."""
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
    """Arguments lose their last brace."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Changes what the good stream says."""
        for piece in stream.good.push(text):
            if isinstance(piece, ToolCallArguments) and piece.text.endswith("}"):
                piece = replace(piece, text=piece.text[:-1])
            yield piece


class ForgetsBetweenPushes(BrokenParser):
    """Ends the good stream with every push, so that markers in two parts are not seen."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Every push is a text of its own."""
        yield from stream.good.push(text)
        yield from stream.good.finish()


class CountsFromOne(BrokenParser):
    """The first call has index 1."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Moves every index."""
        for piece in stream.good.push(text):
            if isinstance(piece, ToolCallStart | ToolCallArguments | ToolCallEnd):
                piece = replace(piece, index=piece.index + 1)
            yield piece


class HoldsArguments(BrokenParser):
    """Arguments come when they are complete."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Joins arguments up to the end of their call."""
        for piece in stream.good.push(text):
            if isinstance(piece, ToolCallArguments):
                stream.held.append(piece)
                continue
            if isinstance(piece, ToolCallEnd):
                yield from self.finish(stream)
            yield piece

    def finish(self, stream: _Stream) -> Iterable[Piece]:
        """Releases the arguments."""
        texts = [piece.text for piece in stream.held if isinstance(piece, ToolCallArguments)]
        if texts:
            first = stream.held[0]
            assert isinstance(first, ToolCallArguments)
            yield ToolCallArguments(first.index, "".join(texts))
        stream.held.clear()


class HoldsContent(BrokenParser):
    """All content comes at the end."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Keeps content back."""
        for piece in stream.good.push(text):
            if isinstance(piece, Content):
                stream.held.append(piece)
            else:
                yield piece

    def finish(self, stream: _Stream) -> Iterable[Piece]:
        """Releases it."""
        yield from self.push(stream, "")
        held = (*stream.held, *stream.good.finish())
        text = "".join(piece.text for piece in held if isinstance(piece, Content))
        if text:
            yield Content(text)


class EndsEveryCall(BrokenParser):
    """A call that is cut off is whole."""

    def push(self, stream: _Stream, text: str) -> Iterable[Piece]:
        """Counts calls that go on."""
        for piece in stream.good.push(text):
            stream.num_open += isinstance(piece, ToolCallStart) - isinstance(piece, ToolCallEnd)
            if isinstance(piece, ToolCallStart):
                stream.held = [ToolCallEnd(piece.index)]
            yield piece

    def finish(self, stream: _Stream) -> Iterable[Piece]:
        """Ends the last one."""
        yield from stream.good.finish()
        if stream.num_open:
            yield from stream.held


BROKEN_PARSERS: Mapping[type[BrokenParser], tuple[str, ...]] = {
    DropsBraces: ("finds_what_is_there",),
    ForgetsBetweenPushes: ("does_not_depend_on_cuts",),
    CountsFromOne: ("tells_calls_in_order",),
    HoldsArguments: ("streams_arguments",),
    HoldsContent: ("holds_no_prose_back",),
    EndsEveryCall: ("makes_no_call_whole_that_is_cut_off",),
}
"""Every broken parser and the rules that catch it, given streams with calls that are streamed."""
