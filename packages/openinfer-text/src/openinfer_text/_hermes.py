r"""The `hermes` tool parser: JSON objects between `<tool_call>` and `</tool_call>`.

    content -> head -> arguments -> tail -> content
                 |         \-> broken ->/
                 \-> content                    it was no call

    <tool_call>
    {"name": "python", "arguments": {"code": "print(1)"}}
    </tool_call>

A call is announced once its name is known and its arguments begin; from there on they are streamed
as they come. Until then all of it may still turn out to be prose that mentions the marker, and
becomes content again. Arguments in front of the name, or as a string, are read as a whole.
"""

import json
import re
from collections.abc import Callable

from openinfer_text._json_scan import JsonScanner
from openinfer_text._parser import ParseContext, StatefulStream
from openinfer_text._pieces import (
    Content,
    Piece,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    beginning_of,
)

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENTS_KEY = re.compile(r'"arguments\\?"')
_OTHER_DIALECTS = ("<function=", "<arg_key>")
_STREAMABLE_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)+")\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_POSSIBLE_HEAD = re.compile(r'\s*(?:\{\s*(?:["}]|\Z)|\Z)')
_OBJECTS_END = re.compile(r"\s*\}?\s*\Z")


class HermesParser:
    """Tool calls as Hermes and Qwen2.5 to Qwen3 write them."""

    name = "hermes"
    markers = (_OPEN, _CLOSE)
    call_trigger = _OPEN
    call_separator = "\n"

    def claims(self, template: str, /) -> bool:
        """A template with `<tool_call>` and the key `"arguments"`, and no XML inside the call."""
        return (
            _OPEN in template
            and _ARGUMENTS_KEY.search(template) is not None
            and not any(mark in template for mark in _OTHER_DIALECTS)
        )

    def call_frame(self, name: str, /) -> tuple[str, str]:
        """What stands before and behind the arguments, as chat templates write it."""
        called = json.dumps(name, ensure_ascii=False)
        return f'{_OPEN}\n{{"name": {called}, "arguments": ', f"}}\n{_CLOSE}"

    def start(self, context: ParseContext, /) -> "_HermesStream":
        """A parser for one answer."""
        return _HermesStream(context.new_call_id)


class _HermesStream(StatefulStream):
    def __init__(self, new_call_id: Callable[[], str]) -> None:
        super().__init__()
        self._new_call_id = new_call_id
        self._read = self._read_content
        self._blank = ""
        """White space that is content only if content goes on behind it."""
        self._has_content = False
        self._num_calls = 0
        self._scanner = JsonScanner()
        self._num_scanned = 0
        self._is_object_open = False

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        while self._read == self._read_head:
            self._give_up(pieces)
            self._read_on(pieces)
        if self._read == self._read_content:
            self._show(self._text, pieces)
            if self._blank and not self._num_calls:
                pieces.append(Content(self._blank))
        elif self._read == self._read_broken and self._text:
            pieces.append(ToolCallArguments(self._num_calls - 1, self._text))
        self._text = self._blank = ""
        return pieces

    def _read_content(self, pieces: list[Piece]) -> bool:
        at = self._text.find(_OPEN)
        end = beginning_of(_OPEN, self._text) if at < 0 else at
        self._show(self._text[:end], pieces)
        if at < 0:
            self._text = self._text[end:]
            return False
        self._text = self._text[at + len(_OPEN) :]
        self._scanner, self._num_scanned = JsonScanner(), 0
        self._read = self._read_head
        return True

    def _read_head(self, pieces: list[Piece]) -> bool:
        if _POSSIBLE_HEAD.match(self._text) is None:
            return self._give_up(pieces)
        head = _STREAMABLE_HEAD.match(self._text)
        if head is not None:
            try:
                name = json.loads(head[1])
            except ValueError:
                return self._give_up(pieces)
            self._announce(name, pieces)
            self._text = self._text[head.end() :]
            self._scanner = JsonScanner()
            self._read = self._read_arguments
            return True
        return self._read_whole_object(pieces)

    def _read_whole_object(self, pieces: list[Piece]) -> bool:
        end = self._scanner.find_end(self._text[self._num_scanned :])
        if self._scanner.broken_at is not None:
            return self._give_up(pieces)
        if end is None:
            self._num_scanned = len(self._text)
            return False
        end += self._num_scanned
        call = _parse_call(self._text[:end])
        if call is None:
            return self._give_up(pieces)
        name, arguments = call
        self._announce(name, pieces)
        self._text = self._text[end:]
        return self._end_call(arguments, pieces, is_object_open=False)

    def _read_arguments(self, pieces: list[Piece]) -> bool:
        end = self._scanner.find_end(self._text)
        broken_at = self._scanner.broken_at
        if broken_at is not None:
            self._take(broken_at, pieces)
            self._read = self._read_broken
            return True
        if end is None:
            self._take(len(self._text), pieces)
            return False
        arguments, self._text = self._text[:end], self._text[end:]
        return self._end_call(arguments, pieces, is_object_open=True)

    def _read_broken(self, pieces: list[Piece]) -> bool:
        """Arguments that are no JSON go on to the end mark; the call's own brace is none of them.

        They have been announced, so they are the client's to judge.
        """
        at = self._text.find(_CLOSE)
        end = beginning_of(_CLOSE, self._text) if at < 0 else at
        objects_end = _OBJECTS_END.search(self._text[:end])
        assert objects_end is not None
        if at < 0:
            self._take(objects_end.start(), pieces)
            return False
        arguments, self._text = self._text[: objects_end.start()], self._text[at:]
        return self._end_call(arguments, pieces, is_object_open=False)

    def _read_tail(self, pieces: list[Piece]) -> bool:
        rest = self._text.lstrip()
        if self._is_object_open and rest.startswith("}"):
            self._is_object_open = False
            self._text = rest[1:]
            rest = self._text.lstrip()
        if rest.startswith(_CLOSE):
            self._text = rest[len(_CLOSE) :]
        elif _CLOSE.startswith(rest):
            return False
        self._read = self._read_content
        return True

    def _give_up(self, pieces: list[Piece]) -> bool:
        """It was no call: the marker is content, and what follows is read as such."""
        self._show(_OPEN, pieces)
        self._read = self._read_content
        return True

    def _announce(self, name: str, pieces: list[Piece]) -> None:
        self._blank = ""
        pieces.append(ToolCallStart(self._num_calls, self._new_call_id(), name))
        self._num_calls += 1

    def _take(self, end: int, pieces: list[Piece]) -> None:
        """Arguments up to `end` are settled."""
        if end:
            pieces.append(ToolCallArguments(self._num_calls - 1, self._text[:end]))
        self._text = self._text[end:]

    def _end_call(self, arguments: str, pieces: list[Piece], *, is_object_open: bool) -> bool:
        if arguments:
            pieces.append(ToolCallArguments(self._num_calls - 1, arguments))
        pieces.append(ToolCallEnd(self._num_calls - 1))
        self._is_object_open = is_object_open
        self._read = self._read_tail
        return True

    def _show(self, text: str, pieces: list[Piece]) -> None:
        text = self._blank + text
        shown = text.rstrip()
        self._blank = text[len(shown) :]
        if not shown:
            return
        if self._num_calls and not self._has_content:
            shown = shown.lstrip()
        self._has_content = True
        pieces.append(Content(shown))


def _parse_call(text: str) -> tuple[str, str] | None:
    """Name and arguments of a whole call, None if it is none."""
    try:
        call = json.loads(text)
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments, ensure_ascii=False)
