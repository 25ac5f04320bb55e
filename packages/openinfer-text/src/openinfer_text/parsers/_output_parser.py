"""`OutputParser`: one answer's text to pieces, by a reasoning parser and a tool parser in a row.

    text -> reasoning parser -> Reasoning, Content -> tool parser -> Content, ToolCall...

Both halves have one shape, `ParserStream`, so that either may be missing. What makes them for a
kind of model is a `ParserFactory`, and that is what an entry point of `openinfer.tool_parsers` or
`openinfer.reasoning_parsers` names.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from openinfer_text.parsers._pieces import Content, Piece, ToolCallEnd, ToolCallStart


def new_call_id() -> str:
    """A fresh id in the form that OpenAI's own have."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseContext:
    """What a parser may know of the request before the first text."""

    turn: str = ""
    """What the prompt already holds of the turn that the model continues."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Definitions of the tools that the model was offered, OpenAI's objects."""
    call_ids: Sequence[str] = ()
    """Ids of the conversation's earlier calls, in order, as the model has read them."""
    new_call_id: Callable[[], str] = new_call_id


class ParserStream(Protocol):
    """One answer being parsed; one thread at a time.

    The pieces do not depend on how the text is cut into pushes, save that texts of one kind come in
    more or fewer parts. Nothing is lost: what turns out not to be reasoning or a call is content.
    """

    def push(self, text: str, /) -> Iterable[Piece]:
        """The pieces that `text` completes."""

    def finish(self) -> Iterable[Piece]:
        """Ends the text: releases what was held back."""


class StatefulStream:
    """The part of a `ParserStream` that all have whose states are methods.

    The present one, `_read`, looks at `_text` from `_seen` on and adds pieces; True: it has handed
    over to another state, which goes on with the rest. What it has looked at without knowing what
    it is stays held: from `_at` on, and in `_parts` if it came with earlier pushes. So every
    character is copied a few times at most, however the text is cut and however much is held:
    a parser runs on the thread that serves all requests.
    """

    _read: Callable[[list[Piece]], bool]

    def __init__(self) -> None:
        self._text = ""
        """The last push, behind what was left of the one before."""
        self._at = self._seen = 0
        self._parts: list[str] = []

    def push(self, text: str, /) -> list[Piece]:
        """The pieces that `text` completes."""
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
        """What is held up to `end`; it is dealt with."""
        taken = self._text[self._at : end]
        if self._parts:
            taken = "".join((*self._parts, taken))
            self._parts.clear()
        self._at = self._seen = end
        return taken

    def _go_back(self) -> None:
        """What is held is to be read again, by another state."""
        if self._parts:
            self._text = "".join((*self._parts, self._text[self._at :]))
            self._parts.clear()
            self._at = 0
        self._seen = self._at


class ParserFactory(Protocol):
    """A way to write reasoning or tool calls; immutable, any thread.

    Attributes:
        name: what `--tool-call-parser` or `--reasoning-parser` calls it.
        markers: tokens that must reach the parser, also where special tokens are not shown.
    """

    @property
    def name(self) -> str: ...

    @property
    def markers(self) -> tuple[str, ...]: ...

    def claims(self, template: str, /) -> bool:
        """Whether the model behind this chat template (its Jinja source) writes in this way."""

    def start(self, context: ParseContext, /) -> ParserStream:
        """A parser for one answer."""


@runtime_checkable
class ReasoningMarks(Protocol):
    """What a reasoning parser looks for; a `ParserFactory` may have it besides.

    Attributes:
        reasoning_opener: how reasoning begins.
        reasoning_closer: how it ends; what a grammar has to say begins behind it.
    """

    @property
    def reasoning_opener(self) -> str: ...

    @property
    def reasoning_closer(self) -> str: ...


class OutputParser:
    """Turns the text of one answer into pieces as it comes; one thread at a time.

    Attributes:
        markers: tokens that must be part of the text, also where special tokens are not shown.
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
        """Starts an answer.

        Args:
            context: of the request.
            reasoning: finds reasoning; None leaves it in the content.
            tools: finds tool calls; None leaves them in the content.
            has_parallel_calls: False keeps the first call and drops the others.
            is_call_named: the request has named the tool to call; such an answer ends by `stop`, as
                OpenAI's do.
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
        """Whether a whole tool call was found."""
        return self._num_ended > 0

    def push(self, text: str) -> list[Piece]:
        """The pieces that `text` completes."""
        if self._reasoning is None:
            return self._through_tools([Content(text)] if text else ())
        return self._through_tools(self._reasoning.push(text))

    def finish(self) -> list[Piece]:
        """Ends the text: releases what was held back."""
        pieces = [] if self._reasoning is None else self._through_tools(self._reasoning.finish())
        return pieces if self._tools is None else pieces + self._counted(self._tools.finish())

    def finish_reason(self, reason: str) -> str:
        """Why the answer ended, given why its text did: `stop` behind whole calls is `tool_calls`.

        An answer that was cut off inside a call keeps its reason: there is nothing to run yet.
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
