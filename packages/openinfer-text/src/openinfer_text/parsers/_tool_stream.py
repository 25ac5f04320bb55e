"""`ToolStream`: the base of all tool parsers.

    content -> (a marker) -> states of the dialect -> content

The marker is held back until it is known whether a call follows. If no call follows, it is content.
Once a call is announced its arguments are streamed; the call is complete only at its end.
"""

from abc import ABC, abstractmethod

from openinfer_text.parsers._json_scanner import JsonScanner
from openinfer_text.parsers._output_parser import ParseContext, StatefulStream
from openinfer_text.parsers._pieces import (
    Content,
    Piece,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    beginning_of,
)

MAX_HEAD = 1024
"""Maximum number of characters between a marker and the arguments; longer text is not a call."""
MAX_NAME = 256
"""Maximum number of characters of a tool's name in a grammar of calls: the name must fit between
marker and arguments."""


class ToolStream(StatefulStream, ABC):
    """A `ParserStream` that finds calls; a dialect adds the states from `_read_head` on.

    White space between calls, and between text and a call, is dropped.
    """

    def __init__(self, context: ParseContext, openers: tuple[str, ...]) -> None:
        """Starts outside of any call.

        Args:
            context: facts of the request.
            openers: markers that begin a call.
        """
        super().__init__()
        self._new_call_id = context.new_call_id
        self._openers = openers
        self._read = self._read_content
        self._blanks: list[str] = []
        """White space that is content only if more content follows."""
        self._has_content = False
        self._num_calls = 0
        self._lead = ""
        """Text before the head; content if the head is not one."""

    def finish(self) -> list[Piece]:
        """Ends the text and returns the pieces of held text."""
        pieces: list[Piece] = []
        while self._read != self._read_content and not self._is_announced():
            self._reject_call(pieces)
            self._read_on(pieces)
        if self._read == self._read_content:
            self._show(self._take(len(self._text)), pieces)
            if not self._num_calls and (blank := "".join(self._blanks)):
                pieces.append(Content(blank))
        else:
            self._finish_call(pieces)
        self._blanks.clear()
        return pieces

    @abstractmethod
    def _is_announced(self) -> bool:
        """Returns whether the current state reads an announced call."""

    def _finish_call(self, pieces: list[Piece]) -> None:
        """Ends the text inside or after an announced call."""
        self._take(len(self._text))

    @abstractmethod
    def _read_head(self, pieces: list[Piece]) -> bool: ...

    def _read_content(self, pieces: list[Piece]) -> bool:
        found = [
            (at, opener)
            for opener in self._openers
            if (at := self._text.find(opener, self._at)) >= 0
        ]
        if not found:
            ends = (beginning_of(opener, self._text, self._at) for opener in self._openers)
            self._show(self._take(min(ends)), pieces)
            return False
        at, opener = min(found)
        self._show(self._take(at), pieces)
        self._begin_head(self._take(at + len(opener)))
        return True

    def _begin_head(self, lead: str) -> None:
        self._lead = lead
        self._read = self._read_head

    def _reject_call(self, pieces: list[Piece]) -> bool:
        """Turns the marker into content, because no call follows, and reads the rest as content."""
        self._show(self._lead, pieces)
        return self._back_to_content()

    def _back_to_content(self) -> bool:
        self._go_back()
        self._read = self._read_content
        return True

    def _announce(self, name: str, pieces: list[Piece], call_id: str | None = None) -> None:
        self._blanks.clear()
        pieces.append(ToolCallStart(self._num_calls, call_id or self._new_call_id(), name))
        self._num_calls += 1

    def _add_arguments(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(ToolCallArguments(self._num_calls - 1, text))

    def _add_end(self, pieces: list[Piece]) -> None:
        pieces.append(ToolCallEnd(self._num_calls - 1))

    def _show(self, text: str, pieces: list[Piece]) -> None:
        inner = text.rstrip()
        if not inner:
            self._blanks.append(text)
            return
        shown = "".join((*self._blanks, inner))
        self._blanks = [text[len(inner) :]]
        if self._num_calls and not self._has_content:
            shown = shown.lstrip()
        self._has_content = True
        pieces.append(Content(shown))


class JsonToolStream(ToolStream):
    """A `ToolStream` whose calls have JSON arguments.

    Arguments of an announced call are streamed. A value that may not be a call is held back to its
    end first.
    """

    def __init__(self, context: ParseContext, openers: tuple[str, ...]) -> None:
        """Starts outside of any call; arguments as `ToolStream`."""
        super().__init__(context, openers)
        self._scanner = JsonScanner()

    def _finish_call(self, pieces: list[Piece]) -> None:
        rest = self._take(len(self._text))
        if self._read == self._read_broken:
            self._add_arguments(rest, pieces)

    def _read_held(self, pieces: list[Piece]) -> bool:
        end = self._scanner.find_end(self._text, self._seen)
        if self._scanner.broken_at is not None:
            return self._reject_call(pieces)
        if end is None:
            self._seen = len(self._text)
            return False
        # The text is still held back, because it may not be a call.
        self._seen = end
        return self._take_call("".join((*self._parts, self._text[self._at : end])), pieces)

    @abstractmethod
    def _take_call(self, held: str, pieces: list[Piece]) -> bool:
        """Emits the held text, a complete value up to `_seen`, as a call or as content."""

    def _read_arguments(self, pieces: list[Piece]) -> bool:
        end = self._scanner.find_end(self._text, self._at)
        broken_at = self._scanner.broken_at
        if broken_at is not None:
            self._add_arguments(self._take(broken_at), pieces)
            self._read = self._read_broken
            return True
        if end is None:
            self._add_arguments(self._take(len(self._text)), pieces)
            return False
        return self._end_arguments(self._take(end), pieces)

    @abstractmethod
    def _read_broken(self, pieces: list[Piece]) -> bool:
        """Reads arguments that are not JSON, up to the end mark."""

    @abstractmethod
    def _end_arguments(self, arguments: str, pieces: list[Piece]) -> bool:
        """Adds the rest of streamed arguments and ends the call."""
