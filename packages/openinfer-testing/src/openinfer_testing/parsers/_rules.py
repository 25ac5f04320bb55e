"""Every rule that a parser keeps, for every golden stream of its family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from openinfer_testing.parsers._golden import (
    Answer,
    GoldenStream,
    Parsers,
    answer,
    cuts_of,
    pieces_of,
)
from openinfer_text import Content, ToolCallArguments, ToolCallEnd, ToolCallStart

_PROSE = "Nothing in here is a call, a thought or a part of either; it is prose. " * 3
_MAX_HELD_CHARS = 64


@dataclass(frozen=True, slots=True)
class ParserRule:
    """Something every parser does.

    Attributes:
        body: tries it with one stream; raises AssertionError if the parsers do not.
    """

    body: Callable[[Parsers, GoldenStream], None]

    @property
    def name(self) -> str:
        """The rule in a few words."""
        return self.body.__name__

    def check(self, parsers: Parsers, streams: Mapping[str, GoldenStream]) -> None:
        """Holds parsers to the rule.

        Raises:
            AssertionError: naming the stream in which they break it.
        """
        assert streams, "no golden streams"
        for name, stream in streams.items():
            try:
                self.body(parsers, stream)
            except AssertionError as error:
                raise AssertionError(f"{self.name}, stream {name!r}: {error}") from error


def _expect(found: object, wanted: object, what: str) -> None:
    assert found == wanted, f"{what} is {found!r}, not {wanted!r}"


def finds_what_is_there(parsers: Parsers, stream: GoldenStream) -> None:
    """Content, reasoning and calls are the golden ones, and the finish reason follows."""
    found = answer(parsers, stream, [stream.text])
    num_whole = len(stream.calls) if stream.num_whole is None else stream.num_whole
    _expect(found.content, stream.content, "the content")
    _expect(found.reasoning, stream.reasoning, "the reasoning")
    wanted = [(*call, index < num_whole) for index, call in enumerate(stream.calls)]
    _expect([call[1:] for call in found.calls], wanted, "the calls")
    if stream.call_ids is not None:
        _expect([call[0] for call in found.calls], list(stream.call_ids), "the ids")
    is_done = bool(stream.calls) and num_whole == len(stream.calls)
    _expect(found.reasons[0], "tool_calls" if is_done else "stop", "the finish reason")


def does_not_depend_on_cuts(parsers: Parsers, stream: GoldenStream) -> None:
    """Cut at any byte, and character by character, a stream says the same."""
    whole = answer(parsers, stream, [stream.text])
    for deltas in cuts_of(stream.text):
        told = answer(parsers, stream, deltas)
        assert told == whole, f"cut as {deltas[:2]}: {told} instead of {whole}"


def tells_calls_in_order(parsers: Parsers, stream: GoldenStream) -> None:
    """Indices count from 0, a call starts once, before its arguments, and ends once or never."""
    pieces = pieces_of(parsers, stream, stream.text)
    assert all(getattr(piece, "text", "x") for piece in pieces), "there is an empty piece"
    started: list[ToolCallStart] = []
    ended: set[int] = set()
    for piece in pieces:
        if isinstance(piece, ToolCallStart):
            _expect(piece.index, len(started), "the index of the next call")
            assert piece.name, "a call has no name"
            assert piece.call_id not in {call.call_id for call in started}, "an id comes twice"
            started.append(piece)
        elif isinstance(piece, ToolCallArguments | ToolCallEnd):
            _expect(piece.index, len(started) - 1, "the index of the present call")
            assert piece.index not in ended, "a call goes on behind its end"
            if isinstance(piece, ToolCallEnd):
                ended.add(piece.index)


def streams_arguments(parsers: Parsers, stream: GoldenStream) -> None:
    """Where arguments can be streamed they come as they are written."""
    if not stream.is_streamed:
        return
    pieces = pieces_of(parsers, stream, stream.text)
    texts = [piece.text for piece in pieces if isinstance(piece, ToolCallArguments)]
    longest = max(map(len, texts), default=0)
    size = sum(map(len, texts))
    assert longest <= max(_MAX_HELD_CHARS, size // 4), f"{longest} of {size} came at once"


def holds_no_prose_back(parsers: Parsers, stream: GoldenStream) -> None:
    """Text that looks like nothing arrives as it is written; a mention of a marker does, too."""
    prose = GoldenStream(text=_PROSE, tools=stream.tools)
    texts = [p.text for p in pieces_of(parsers, prose, _PROSE) if isinstance(p, Content)]
    _expect("".join(texts), _PROSE, "the content")
    longest = max(map(len, texts))
    assert longest <= _MAX_HELD_CHARS, f"{longest} characters of prose came at once"
    for marker in parsers.tools.markers if parsers.tools else ():
        text = f"Models write {marker} there."
        mention = GoldenStream(text=text, tools=stream.tools)
        _expect(answer(parsers, mention, [text]).content, text, "the content")


def makes_no_call_whole_that_is_cut_off(parsers: Parsers, stream: GoldenStream) -> None:
    """Cut off anywhere, whole calls are the first ones of the stream, and the reason stays."""
    whole = answer(parsers, stream, [stream.text])
    for end in range(len(stream.text)):
        part = answer(parsers, stream, [stream.text[:end]])
        _expect(part.reasons[1], "length", f"cut off at {end}, the finish reason")
        _check_cut_off(part, whole, end)


def _check_cut_off(part: Answer, whole: Answer, end: int) -> None:
    finished = [call[1:3] for call in part.calls if call[3]]
    wanted = [call[1:3] for call in whole.calls if call[3]]
    _expect(finished, wanted[: len(finished)], f"cut off at {end}, the whole calls")


PARSER_RULES = {
    body.__name__: ParserRule(body)
    for body in (
        finds_what_is_there,
        does_not_depend_on_cuts,
        tells_calls_in_order,
        streams_arguments,
        holds_no_prose_back,
        makes_no_call_whole_that_is_cut_off,
    )
}
"""All rules by name."""
