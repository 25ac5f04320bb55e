"""`OutputParser`: splits the text of one output into pieces, by a reasoning and a tool parser.

    text -> reasoning parser -> Reasoning, Content -> tool parser -> Content, ToolCall...

Both are a `ParserStream`, so either may be missing. A `ParserFactory` makes them for one kind of
model; entry points of `openinfer.tool_parsers` and `openinfer.reasoning_parsers` name factories.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from openinfer_text.parsers._pieces import Content, Piece, ToolCallEnd, ToolCallStart


def new_call_id() -> str:
    """Returns a new id in the form of OpenAI's ids."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseContext:
    """Facts of the request that a parser gets before the first text."""

    turn: str = ""
    """The end of the prompt that belongs to the turn that the model continues."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Definitions of the tools offered to the model, as OpenAI's objects."""
    call_ids: Sequence[str] = ()
    """Ids of the conversation's earlier calls, in order, as the model reads them."""
    new_call_id: Callable[[], str] = new_call_id


class ParserStream(Protocol):
    """A parser of one output; one thread at a time.

    The pieces do not depend on how the text is cut into pushes, except that text of one kind may
    come in more or fewer parts. No text is lost: text that is neither reasoning nor a call is
    content.
    """

    def push(self, text: str, /) -> Iterable[Piece]:
        """Returns the pieces that `text` completes."""

    def finish(self) -> Iterable[Piece]:
        """Ends the text and returns the pieces of held text."""


class StatefulStream:
    """Base of `ParserStream`s that are state machines whose states are methods.

    The current state, `_read`, reads `_text` from `_seen` on and appends pieces. It returns True if
    it changed the state, which then reads the rest. Text that was read but not yet understood is
    held: from `_at` on, and in `_parts` if it came with earlier pushes. Every character is copied a
        few times at most, however the text is cut, because parsers of all requests run on one
        thread.
    """

    _read: Callable[[list[Piece]], bool]

    def __init__(self) -> None:
        self._text = ""
        """The unread rest of the previous push, followed by the last push."""
        self._at = self._seen = 0
        self._parts: list[str] = []

    def push(self, text: str, /) -> list[Piece]:
        """Returns the pieces that `text` completes."""
        if self._seen > self._at:
            self._parts.append(self._text[self._at : self._seen])
        self._text = self._text[self._seen :] + text
        self._at = self._seen = 0
        pieces: list[Piece] = []
        self._read_on(pieces)
        return pieces

    def _read_on(self, pieces: list[Piece]) -> None:
        while self._seen < len(self._text) and self._read(pieces):
            pass

    def _take(self, end: int) -> str:
        """Returns the held text up to `end` and releases it."""
        taken = self._text[self._at : end]
        if self._parts:
            taken = "".join((*self._parts, taken))
            self._parts.clear()
        self._at = self._seen = end
        return taken

    def _go_back(self) -> None:
        """Returns to the beginning of the held text, for another state to read it."""
        if self._parts:
            self._text = "".join((*self._parts, self._text[self._at :]))
            self._parts.clear()
            self._at = 0
        self._seen = self._at


class ParserFactory(Protocol):
    """One way to write reasoning or tool calls; immutable, any thread.

    Attributes:
        name: its name for `--tool-call-parser` or `--reasoning-parser`.
        markers: tokens that the parser must see even if special tokens are not shown.
    """

    @property
    def name(self) -> str: ...

    @property
    def markers(self) -> tuple[str, ...]: ...

    def claims(self, template: str, /) -> bool:
        """Returns whether models with this chat template (Jinja source) write in this form."""

    def start(self, context: ParseContext, /) -> ParserStream:
        """Returns a parser for one output."""


@runtime_checkable
class ReasoningMarks(Protocol):
    """Marks of reasoning; an optional interface of a `ParserFactory`.

    Attributes:
        reasoning_opener: mark at the start of reasoning.
        reasoning_closer: mark at its end; a grammar applies to the text after it.
    """

    @property
    def reasoning_opener(self) -> str: ...

    @property
    def reasoning_closer(self) -> str: ...


class OutputParser:
    """Parser of one output's text into pieces; one thread at a time.

    Attributes:
        markers: tokens that must be part of the text even if special tokens are not shown.
    """

    def __init__(
        self,
        context: ParseContext,
        *,
        reasoning: ParserFactory | None,
        tools: ParserFactory | None,
        has_parallel_calls: bool = True,
        is_call_named: bool = False,
    ) -> None:
        """Starts an output.

        Args:
            context: facts of the request.
            reasoning: finds reasoning; None leaves it in the content.
            tools: finds tool calls; None leaves them in the content.
            has_parallel_calls: if False, only the first call is kept.
            is_call_named: whether the request names the tool to call. The finish reason is then
                `stop`, as at OpenAI.
        """
        factories = [factory for factory in (reasoning, tools) if factory]
        self.markers = tuple(marker for factory in factories for marker in factory.markers)
        self._reasoning = reasoning.start(context) if reasoning else None
        self._tools = tools.start(context) if tools else None
        self._has_parallel_calls = has_parallel_calls
        self._is_call_named = is_call_named
        self._num_open = self._num_ended = 0

    @property
    def has_call(self) -> bool:
        """Whether a complete tool call was found."""
        return self._num_ended > 0

    def push(self, text: str) -> list[Piece]:
        """Returns the pieces that `text` completes."""
        if self._reasoning is None:
            return self._through_tools([Content(text)] if text else ())
        return self._through_tools(self._reasoning.push(text))

    def finish(self) -> list[Piece]:
        """Ends the text and returns the pieces of held text."""
        pieces = [] if self._reasoning is None else self._through_tools(self._reasoning.finish())
        return pieces if self._tools is None else pieces + self._counted(self._tools.finish())

    def finish_reason(self, reason: str) -> str:
        """Returns the finish reason: `tool_calls` if the text stopped after complete calls.

        An output that was cut off inside a call keeps its reason: the call cannot be run.
        """
        is_whole = self.has_call and not (self._num_open or self._is_call_named)
        return "tool_calls" if is_whole and reason == "stop" else reason

    def _through_tools(self, pieces: Iterable[Piece]) -> list[Piece]:
        if self._tools is None:
            return list(pieces)
        parsed: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Content):
                parsed += self._counted(self._tools.push(piece.text))
            else:
                parsed.append(piece)
        return parsed

    def _counted(self, pieces: Iterable[Piece]) -> list[Piece]:
        kept: list[Piece] = []
        for piece in pieces:
            if not (isinstance(piece, Content) or self._has_parallel_calls or _is_first(piece)):
                continue
            if isinstance(piece, ToolCallStart):
                self._num_open += 1
            elif isinstance(piece, ToolCallEnd):
                self._num_open -= 1
                self._num_ended += 1
            kept.append(piece)
        return kept


def _is_first(piece: Piece) -> bool:
    return getattr(piece, "index", 0) == 0
