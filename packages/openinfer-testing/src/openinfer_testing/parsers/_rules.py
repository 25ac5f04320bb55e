"""Rules of parsers. Each is checked with every golden stream of a family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from openinfer_testing.parsers._golden import (
    GoldenStream,
    ParsedOutput,
    Parsers,
    cuts_of,
    parse_output,
    pieces_of,
)
from openinfer_text import Content, ToolCallArguments, ToolCallEnd, ToolCallStart

_PROSE = "Nothing in here is a call, a thought or a part of either; it is prose. " * 3
_MAX_HELD_CHARS = 64


@dataclass(frozen=True, slots=True)
class ParserRule:
    """Requirement that every parser must satisfy.

    Attributes:
        body: Checks the requirement with one stream; raises AssertionError if the parsers violate
            it.
    """

    body: Callable[[Parsers, GoldenStream], None]

    @property
    def name(self) -> str:
        """Name of the rule, which is the name of its function."""
        return self.body.__name__

    def check(self, parsers: Parsers, streams: Mapping[str, GoldenStream]) -> None:
        """Checks the parsers of a family with all its golden streams.

        Raises:
            AssertionError: The parsers violate the rule. The message names the stream.
        """
        assert streams, "the fixture golden_streams must return at least one stream"
        for name, stream in streams.items():
            try:
                self.body(parsers, stream)
            except AssertionError as error:
                raise AssertionError(f"{self.name}, stream {name!r}: {error}") from error


def _expect(found: object, wanted: object, what: str) -> None:
    assert found == wanted, f"{what} must be {wanted!r}, not {found!r}"


def finds_content_reasoning_and_calls(parsers: Parsers, stream: GoldenStream) -> None:
    """The parsers must find the golden content, reasoning and calls.

    The finish reason must be `tool_calls` if there are calls and all of them are complete.
    """
    found = parse_output(parsers, stream, [stream.text])
    num_whole = len(stream.calls) if stream.num_whole is None else stream.num_whole
    _expect(found.content, stream.content, "the content")
    _expect(found.reasoning, stream.reasoning, "the reasoning")
    wanted = [(*call, index < num_whole) for index, call in enumerate(stream.calls)]
    _expect([call[1:] for call in found.calls], wanted, "the calls")
    if stream.call_ids is not None:
        _expect([call[0] for call in found.calls], list(stream.call_ids), "the ids")
    is_done = bool(stream.calls) and num_whole == len(stream.calls)
    _expect(found.reasons[0], "tool_calls" if is_done else "stop", "the finish reason")


def result_is_independent_of_chunking(parsers: Parsers, stream: GoldenStream) -> None:
    """The result must not depend on how the text is cut: at any byte, or into single characters."""
    whole = parse_output(parsers, stream, [stream.text])
    for deltas in cuts_of(stream.text):
        found = parse_output(parsers, stream, deltas)
        assert found == whole, f"cut as {deltas[:2]}: {found} instead of {whole}"


def call_pieces_are_in_order(parsers: Parsers, stream: GoldenStream) -> None:
    """Call indices count from 0.

    A call starts once, then sends arguments, then ends at most once. No piece is empty.
    """
    pieces = pieces_of(parsers, stream, stream.text)
    assert all(getattr(piece, "text", "x") for piece in pieces), "a piece must not be empty"
    started: list[ToolCallStart] = []
    ended: set[int] = set()
    for piece in pieces:
        if isinstance(piece, ToolCallStart):
            _expect(piece.index, len(started), "the index of the next call")
            assert piece.name, "a call must have a name"
            assert piece.call_id not in {call.call_id for call in started}, (
                "call ids must be unique"
            )
            started.append(piece)
        elif isinstance(piece, ToolCallArguments | ToolCallEnd):
            _expect(piece.index, len(started) - 1, "the index of the present call")
            assert piece.index not in ended, "a call must send no piece after its end"
            if isinstance(piece, ToolCallEnd):
                ended.add(piece.index)


def streams_arguments(parsers: Parsers, stream: GoldenStream) -> None:
    """If a golden stream has `is_streamed`, its arguments must arrive while they are written."""
    if not stream.is_streamed:
        return
    pieces = pieces_of(parsers, stream, stream.text)
    texts = [piece.text for piece in pieces if isinstance(piece, ToolCallArguments)]
    longest = max(map(len, texts), default=0)
    size = sum(map(len, texts))
    assert longest <= max(_MAX_HELD_CHARS, size // 4), (
        f"{longest} of {size} characters of arguments arrived in one piece"
    )


def streams_prose_without_delay(parsers: Parsers, stream: GoldenStream) -> None:
    """Prose must arrive while it is written. A marker mentioned in prose is content."""
    prose = GoldenStream(text=_PROSE, tools=stream.tools)
    texts = [p.text for p in pieces_of(parsers, prose, _PROSE) if isinstance(p, Content)]
    _expect("".join(texts), _PROSE, "the content")
    longest = max(map(len, texts))
    assert longest <= _MAX_HELD_CHARS, (
        f"{longest} characters of prose arrived in one piece; at most {_MAX_HELD_CHARS} may"
    )
    for marker in parsers.tools.markers if parsers.tools else ():
        text = f"Models write {marker} there."
        mention = GoldenStream(text=text, tools=stream.tools)
        _expect(parse_output(parsers, mention, [text]).content, text, "the content")


def truncated_calls_are_incomplete(parsers: Parsers, stream: GoldenStream) -> None:
    """If a stream is truncated, the complete calls must be the first ones of the whole stream.

    The finish reason of a truncated output is `length`.
    """
    whole = parse_output(parsers, stream, [stream.text])
    for end in range(len(stream.text)):
        part = parse_output(parsers, stream, [stream.text[:end]])
        _expect(part.reasons[1], "length", f"truncated at {end}, the finish reason")
        _check_cut_off(part, whole, end)


def _check_cut_off(part: ParsedOutput, whole: ParsedOutput, end: int) -> None:
    finished = [call[1:3] for call in part.calls if call[3]]
    wanted = [call[1:3] for call in whole.calls if call[3]]
    _expect(finished, wanted[: len(finished)], f"truncated at {end}, the complete calls")


PARSER_RULES = {
    body.__name__: ParserRule(body)
    for body in (
        finds_content_reasoning_and_calls,
        result_is_independent_of_chunking,
        call_pieces_are_in_order,
        streams_arguments,
        streams_prose_without_delay,
        truncated_calls_are_incomplete,
    )
}
"""Every rule, by name."""
