r"""The `hermes` tool parser: JSON objects between `<tool_call>` and `</tool_call>`.

    content -> head -> arguments -> tail -> content, or the head of a second object
                 |  \      \-> broken ->/ \-> members -> tail
                 |   \-> whole -------->/
                 \-> content                    it was no call

    <tool_call>
    {"name": "python", "arguments": {"code": "print(1)"}}
    </tool_call>

A call is announced once its name is known and its arguments begin; then the arguments are streamed.
Until then, the text may still be prose that mentions the marker; such text becomes content.
Arguments before the name, or in a string, are read completely before the call is announced. Keys
after the arguments are dropped.

Every push reads a bounded amount of old text again, so the time is linear in the text.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from openinfer_text.parsers._call_grammar import Tag, json_call
from openinfer_text.parsers._json_scanner import JsonScanner
from openinfer_text.parsers._output_parser import ParseContext
from openinfer_text.parsers._pieces import BLANK, Piece, beginning_of, end_of
from openinfer_text.parsers._tool_stream import MAX_HEAD, JsonToolStream

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENTS_KEY = re.compile(r'"arguments\\?"')
_OTHER_DIALECTS = ("<function=", "<arg_key>")
_STREAMABLE_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)+")\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_HEAD = re.compile(r'\s*\{\s*["}]')
_POSSIBLE_HEAD = re.compile(r"\s*(?:\{\s*)?\Z")
_MEMBERS = re.compile(r',\s*"')
_POSSIBLE_MEMBERS = re.compile(r",\s*\Z")


class HermesParser:
    """Tool calls as Hermes and Qwen2.5 to Qwen3 write them."""

    name = "hermes"
    markers = (_OPEN, _CLOSE)
    call_triggers = (_OPEN,)
    call_section = ("", "")
    call_separator = "\n"

    def claims(self, template: str, /) -> bool:
        """Returns whether a template writes `<tool_call>` with JSON `"arguments"`, and no XML."""
        return (
            _OPEN in template
            and _ARGUMENTS_KEY.search(template) is not None
            and not any(mark in template for mark in _OTHER_DIALECTS)
        )

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> list[Tag]:
        """See `CallForm.call_tags`; spelled as chat templates do."""
        called = json.dumps(function["name"], ensure_ascii=False)
        begin = f'{_OPEN}\n{{"name": {called}, "arguments": '
        return [json_call(begin, parameters, f"}}\n{_CLOSE}")]

    def start(self, context: ParseContext, /) -> "_HermesStream":
        """Returns a parser for one output."""
        return _HermesStream(context)


class _HermesStream(JsonToolStream):
    def __init__(self, context: ParseContext) -> None:
        super().__init__(context, (_OPEN,))
        self._is_object_open = False

    def _is_announced(self) -> bool:
        return self._read not in (self._read_head, self._read_held)

    def _read_head(self, pieces: list[Piece]) -> bool:
        text = self._text[self._at : self._at + MAX_HEAD]
        if _HEAD.match(text) is None:
            is_possible = len(text) < MAX_HEAD and _POSSIBLE_HEAD.match(text)
            return False if is_possible else self._reject_call(pieces)
        head = _STREAMABLE_HEAD.match(text)
        if head is not None:
            name = _parse_name(head[1])
            if name is None:
                return self._reject_call(pieces)
            self._announce(name, pieces)
            self._take(self._at + head.end())
            self._scanner, self._read = JsonScanner(), self._read_arguments
            return True
        scanner = JsonScanner()
        goes_on = scanner.find_end(text) is None and scanner.broken_at is None
        if goes_on and len(text) < MAX_HEAD:
            return False
        self._scanner, self._read = JsonScanner(), self._read_held
        return True

    def _take_call(self, held: str, pieces: list[Piece]) -> bool:
        call = _parse_call(held)
        if call is None:
            return self._reject_call(pieces)
        name, arguments = call
        self._announce(name, pieces)
        self._take(self._seen)
        return self._end_call(arguments, pieces, is_object_open=False)

    def _end_arguments(self, arguments: str, pieces: list[Piece]) -> bool:
        return self._end_call(arguments, pieces, is_object_open=True)

    def _read_broken(self, pieces: list[Piece]) -> bool:
        """Reads arguments that are not JSON up to the end mark, without the call's own brace.

        The call is already announced, so the client gets the arguments as they are.
        """
        at = self._text.find(_CLOSE, self._at)
        end = beginning_of(_CLOSE, self._text, self._at) if at < 0 else at
        arguments = self._take(_without_brace(self._text, self._at, end))
        if at < 0:
            self._add_arguments(arguments, pieces)
            return False
        self._take(at)
        return self._end_call(arguments, pieces, is_object_open=False)

    def _read_tail(self, pieces: list[Piece]) -> bool:
        self._seen = at = end_of(BLANK, self._text, self._seen)
        rest = self._text[at : at + MAX_HEAD]
        if rest.startswith(_CLOSE):
            self._take(at + len(_CLOSE))
            self._read = self._read_content
        elif _CLOSE.startswith(rest):
            return False
        elif self._is_object_open and rest[0] == "}":
            self._is_object_open = False
            self._take(at + 1)
        elif self._is_object_open and _MEMBERS.match(rest):
            self._scanner, self._read = JsonScanner(depth=1), self._read_members
        elif self._is_object_open and len(rest) < MAX_HEAD and _POSSIBLE_MEMBERS.match(rest):
            return False
        elif rest[0] == "{":
            self._begin_head(self._take(at))
        else:
            self._go_back()
            self._read = self._read_content
        return True

    def _read_members(self, pieces: list[Piece]) -> bool:
        """Reads further keys of the call's object, up to its end."""
        end = self._scanner.find_end(self._text, self._seen)
        if self._scanner.broken_at is not None:
            self._go_back()
            self._read = self._read_content
        elif end is None:
            self._seen = len(self._text)
            return False
        else:
            self._is_object_open = False
            self._take(end)
            self._read = self._read_tail
        return True

    def _end_call(self, arguments: str, pieces: list[Piece], *, is_object_open: bool) -> bool:
        self._add_arguments(arguments, pieces)
        self._add_end(pieces)
        self._is_object_open = is_object_open
        self._read = self._read_tail
        return True


def _without_brace(text: str, start: int, end: int) -> int:
    """Returns where the last brace of `text[start:end]` begins, with the white space around it."""
    start = max(start, end - MAX_HEAD)
    inner = text[start:end].rstrip()
    return start + len(inner.removesuffix("}").rstrip())


def _parse_name(text: str) -> str | None:
    """Returns a name in JSON, None if it is not a string of valid Unicode."""
    try:
        name: str = json.loads(text)
        name.encode()
    except ValueError:
        return None
    return name


def _parse_call(text: str) -> tuple[str, str] | None:
    """Returns name and arguments of a complete call, None if the text is not a call."""
    try:
        call = _loads(text)
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):
            arguments = _loads(arguments)
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        name.encode()
        return name, _dumps(arguments)
    except (ValueError, RecursionError):
        return None


def _loads(text: str) -> Any:
    """Parses strict JSON, without NaN and infinities.

    Raises:
        ValueError: the text is not JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _dumps(value: object) -> str:
    """Returns JSON in valid Unicode: half of a surrogate pair is escaped.

    Raises:
        ValueError: a number is beyond the range of floats.
        RecursionError: it is nested too deeply.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text
