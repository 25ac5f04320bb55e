r"""The `qwen3_coder` tool parser: functions and parameters as tags, values as plain text.

    content -> head -> parameters <-> value (streamed, or held up to its end)
                 |          \-> tail -> content, or the head of a second function
                 \-> content                    it was no call

    <tool_call>
    <function=weather>
    <parameter=city>
    Berlin
    </parameter>
    </function>
    </tool_call>

The tool's schema gives the JSON types of values. Strings are streamed; other values are held back
to their end, and stay strings if they are not of their type. Some models leave out `<tool_call>`;
then the function must be one of the request's tools.

A closing tag inside a value is text unless it is followed by a tag that may follow a value, so code
may mention the tags.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from openinfer_text.parsers._call_grammar import Tag
from openinfer_text.parsers._json_scanner import JsonScanner
from openinfer_text.parsers._output_parser import ParseContext
from openinfer_text.parsers._pieces import BLANK, Piece, end_of
from openinfer_text.parsers._tool_schemas import ToolSchemas
from openinfer_text.parsers._tool_stream import MAX_HEAD, ToolStream
from openinfer_text.parsers._tool_values import is_string, json_of_text, json_of_value, may_be_null
from openinfer_text.parsers._xml_grammar import (
    FUNCTION_END,
    PARAMETER_END,
    checked_name,
    constrained_parameters,
    free_parameters,
)

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _PARAMETER = "<function=", "<parameter="
_TAG_NAME = re.compile(r"[ \t]*([^<>\s](?:[^<>\n]*[^<>\s])?)[ \t]*>")
_POSSIBLE_TAG_NAME = re.compile(r"[^<>\n]*\Z")
_FOLLOWERS = {
    PARAMETER_END: (_PARAMETER, FUNCTION_END, _CLOSE, _OPEN),
    FUNCTION_END: (_CLOSE, _OPEN),
}
"""Tags that may follow a closing tag that ends a value. Before other text, a closing tag is part of
the value."""
_CLOSER = re.compile("|".join(_FOLLOWERS))
_POSSIBLE_CLOSER = re.compile(r"\n?(?:<(?:/[a-z]*)?)?\Z")
_LONGEST_CLOSER = 1 + len(PARAMETER_END)


class XmlCallParser:
    """Tool calls as Qwen3-Coder and Qwen3.5 write them."""

    name = "qwen3_coder"
    markers = (_OPEN, _CLOSE)
    call_triggers = (_OPEN, _FUNCTION)
    call_section = ("", "")
    call_separator = "\n"

    def claims(self, template: str, /) -> bool:
        """Returns whether a template contains `<tool_call>` and both tags inside of it."""
        return all(mark in template for mark in (_OPEN, _FUNCTION, _PARAMETER))

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> list[Tag]:
        """See `CallForm.call_tags`; the second is a function outside of `<tool_call>`."""
        begin = f"{_FUNCTION}{checked_name(function['name'], 'name')}>\n"
        if parameters is None:
            content = free_parameters(function.get("parameters"))
        else:
            content = constrained_parameters(parameters)
        bare = {"type": "tag", "begin": begin, "content": content, "end": FUNCTION_END}
        return [bare | {"begin": f"{_OPEN}\n{begin}", "end": f"{FUNCTION_END}\n{_CLOSE}"}, bare]

    def start(self, context: ParseContext, /) -> "_XmlStream":
        """Returns a parser for one output."""
        return _XmlStream(context)


class _XmlStream(ToolStream):
    def __init__(self, context: ParseContext) -> None:
        super().__init__(context, (_OPEN, _FUNCTION))
        self._schemas = ToolSchemas(context.tools)
        self._function = ""
        self._is_bare = False
        """Whether the function stands outside of `<tool_call>`."""
        self._num_parameters = 0
        self._kinds: frozenset[str] = frozenset()
        self._scanner = JsonScanner()

    def _is_announced(self) -> bool:
        return self._read not in (self._read_head, self._read_name)

    def _finish_call(self, pieces: list[Piece]) -> None:
        rest = self._take(len(self._text))
        if self._read in (self._read_first, self._read_json):
            self._add_arguments(rest, pieces)
        if self._read not in (self._read_value, self._read_text, self._read_held):
            return
        # A closing tag may have been held back until the text after it was known.
        closer = next((c for c in _CLOSER.finditer(rest) if not rest[c.end() :].strip()), None)
        if self._read == self._read_text:
            if closer is None:
                self._add_arguments(json_of_text(rest), pieces)
            else:
                self._add_text(rest[: closer.start()], pieces)
                self._add_arguments('"', pieces)
        elif closer is None:
            self._add_arguments(rest, pieces)
        else:
            value = rest[: closer.start()].removesuffix("\n")
            self._add_arguments(json_of_value(value, self._kinds), pieces)

    def _begin_head(self, lead: str) -> None:
        super()._begin_head(lead)
        self._is_bare = lead == _FUNCTION
        if self._is_bare:
            self._read = self._read_name

    def _may_come(self, at: int, *marks: str) -> bool:
        rest = self._text[at : at + MAX_HEAD]
        return any(mark.startswith(rest) for mark in marks)

    def _read_head(self, pieces: list[Piece]) -> bool:
        """Reads the text after `<tool_call>`."""
        self._seen = at = end_of(BLANK, self._text, self._seen)
        if self._text.startswith(_FUNCTION, at):
            self._lead += self._take(at + len(_FUNCTION))
            self._read = self._read_name
            return True
        return False if self._may_come(at, _FUNCTION) else self._reject_call(pieces)

    def _read_name(self, pieces: list[Piece]) -> bool:
        name = self._read_tag_name()
        if name == "":
            return False
        if name is None or (self._is_bare and name not in self._schemas.names):
            return self._reject_call(pieces)
        self._take(self._text.index(">", self._at) + 1)
        self._function, self._num_parameters = name, 0
        self._announce(name, pieces)
        self._read = self._read_parameters
        return True

    def _read_tag_name(self) -> str | None:
        """Returns the name up to `>`, "" if more text may complete it, None if there is none."""
        text = self._text[self._at : self._at + MAX_HEAD]
        found = _TAG_NAME.match(text)
        if found is not None:
            return found[1]
        is_possible = len(text) < MAX_HEAD and _POSSIBLE_TAG_NAME.match(text)
        return "" if is_possible else None

    def _read_parameters(self, pieces: list[Piece]) -> bool:
        self._seen = at = end_of(BLANK, self._text, self._seen)
        if self._text.startswith(_PARAMETER, at):
            self._take(at + len(_PARAMETER))
            self._lead, self._read = _PARAMETER, self._read_parameter
        elif self._text.startswith((FUNCTION_END, _CLOSE, _OPEN), at):
            if self._text.startswith(FUNCTION_END, at):
                self._take(at + len(FUNCTION_END))
            self._add_arguments("}" if self._num_parameters else "{}", pieces)
            self._add_end(pieces)
            self._read = self._read_tail
        elif self._may_come(at, _PARAMETER, FUNCTION_END, _CLOSE, _OPEN):
            return False
        else:
            # This is neither a parameter nor an end, so the call stays incomplete and this text is
            # content.
            return self._back_to_content()
        return True

    def _read_parameter(self, pieces: list[Piece]) -> bool:
        name = self._read_tag_name()
        if name == "":
            return False
        if name is None:
            return self._reject_call(pieces)
        self._take(self._text.index(">", self._at) + 1)
        self._kinds = self._schemas.kinds(self._function, name)
        separator = ", " if self._num_parameters else "{"
        self._add_arguments(f"{separator}{json.dumps(name, ensure_ascii=False)}: ", pieces)
        self._num_parameters += 1
        self._read = self._read_value
        return True

    def _read_value(self, pieces: list[Piece]) -> bool:
        """Reads the first characters: the line break after the tag, and a possible `null`."""
        at = self._at + self._text.startswith("\n", self._at)
        is_text = is_string(self._kinds)
        if not is_text and self._kinds <= {"string", "null"}:
            first = self._text[at : at + 4]
            if len(first) < 4 and may_be_null(first):
                return False
            is_text = not may_be_null(first)
        self._take(at)
        if is_text:
            self._add_arguments('"', pieces)
        self._read = self._read_text if is_text else self._read_first
        return True

    def _read_text(self, pieces: list[Piece]) -> bool:
        end, is_over = self._find_end()
        if is_over:
            self._add_text(self._take(end), pieces)
            return self._close_value('"', pieces)
        if end > self._at and self._text.startswith("\n<", end - 1):
            end -= 1
        self._add_arguments(json_of_text(self._take(end)), pieces)
        return False

    def _read_first(self, pieces: list[Piece]) -> bool:
        """Reads the first character of a value that is held back."""
        may_nest = not self._kinds.isdisjoint(("object", "array"))
        if may_nest and self._text[self._at] in "{[":
            self._scanner, self._read = JsonScanner(), self._read_json
        else:
            self._read = self._read_held
        return True

    def _read_json(self, pieces: list[Piece]) -> bool:
        """Reads a value up to its last bracket, ignoring tags in its strings."""
        end = self._scanner.find_end(self._text, self._seen)
        if self._scanner.broken_at is not None:
            self._go_back()
            self._read = self._read_held
        elif end is None:
            self._seen = len(self._text)
            return False
        else:
            self._seen, self._read = end, self._read_held
        return True

    def _read_held(self, pieces: list[Piece]) -> bool:
        self._seen, is_over = self._find_end()
        if not is_over:
            return False
        value = self._take(self._seen).removesuffix("\n")
        return self._close_value(json_of_value(value, self._kinds), pieces)

    def _find_end(self) -> tuple[int, bool]:
        """Returns the end of text known to be in the value, and whether the value ends there."""
        at = self._seen
        while (closer := _CLOSER.search(self._text, at)) is not None:
            after = end_of(BLANK, self._text, closer.end())
            followers = _FOLLOWERS[closer.group()]
            is_far = after - closer.end() > MAX_HEAD
            if is_far or self._text.startswith(followers, after):
                return closer.start(), True
            if self._may_come(after, *followers):
                return closer.start(), False
            at = closer.end()
        possible = _POSSIBLE_CLOSER.search(self._text, max(at, len(self._text) - _LONGEST_CLOSER))
        assert possible is not None, "the end of a text may begin a closing tag"
        return possible.start(), False

    def _close_value(self, rest: str, pieces: list[Piece]) -> bool:
        self._add_arguments(rest, pieces)
        if self._text.startswith(PARAMETER_END, self._at):
            self._take(self._at + len(PARAMETER_END))
        self._read = self._read_parameters
        return True

    def _add_text(self, text: str, pieces: list[Piece]) -> None:
        self._add_arguments(json_of_text(text.removesuffix("\n")), pieces)

    def _read_tail(self, pieces: list[Piece]) -> bool:
        self._seen = at = end_of(BLANK, self._text, self._seen)
        if self._text.startswith(_CLOSE, at):
            self._take(at + len(_CLOSE))
            self._read = self._read_content
        elif self._text.startswith(_FUNCTION, at):
            self._take(at + len(_FUNCTION))
            self._lead, self._read = _FUNCTION, self._read_name
        elif self._may_come(at, _CLOSE, _FUNCTION):
            return False
        else:
            return self._back_to_content()
        return True
