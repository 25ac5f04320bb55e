r"""Tool calls in sections of marker tokens, as Kimi-K2 and DeepSeek-V3 write them.

    content -> (section begins) between -> (call begins) head -> start -> arguments -> tail
                                   ^                      |          \--> broken ----->|
                                   |                      \---> nameless ------------->|
                                   \---------------------- (call ends) ----------------/

A `SectionForm` lists the markers and the parts of a head. If the head does not name the tool, the
call is read completely, and announced if its arguments identify the tool.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openinfer_text.errors import StructureError
from openinfer_text.parsers._json_scanner import JsonScanner
from openinfer_text.parsers._output_parser import ParseContext
from openinfer_text.parsers._pieces import BLANK, Piece, beginning_of, end_of
from openinfer_text.parsers._tool_stream import MAX_HEAD, MAX_NAME, JsonToolStream

LABEL = None
"""The part of a head that names the call: text without space, angle brackets and braces."""
_LABEL = re.compile(r"[^\s<>{}]*")
_FENCE = "```"


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionForm:
    """How a model writes sections of calls."""

    section_begin: str
    section_end: str
    call_begin: str
    call_end: str
    head: tuple[str | None, ...]
    """Parts between `call_begin` and the arguments; white space may stand between them."""
    separator: str = ""
    """Text that the model writes between two calls."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Tokens that the parser must see."""
        inner = (part for part in self.head if part is not LABEL and part.startswith("<"))
        return (self.section_begin, self.section_end, self.call_begin, self.call_end, *inner)

    def read_head(self, text: str) -> tuple[str, int] | str | None:
        """Returns (label, end) of a head; "" if more text may complete it, None if it is none."""
        at, label = 0, ""
        for part in self.head:
            at = end_of(BLANK, text, at)
            if at == len(text):
                return ""
            if part is LABEL:
                begin, at = at, end_of(_LABEL, text, at)
                label = text[begin:at]
                if not label:
                    return None
            elif text.startswith(part, at):
                at += len(part)
            else:
                return "" if part.startswith(text[at:]) else None
        return label, at


class SectionParser:
    """Base of parsers for calls in sections: `ParserFactory` and `CallForm` attributes."""

    def __init__(self, form: SectionForm) -> None:
        self._form = form
        self.markers = form.markers
        self.call_triggers = (form.section_begin, form.call_begin)
        self.call_section = (form.section_begin, form.section_end)
        self.call_separator = form.separator


def callable_name(function: Mapping[str, Any]) -> str:
    """Returns the name of a function after checking that it can be a label.

    Raises:
        StructureError: it cannot be one.
    """
    name: str = function["name"]
    if len(name) > MAX_NAME or not _LABEL.fullmatch(name):
        reason = (
            "cannot be called under a grammar, which takes names of at most "
            f"{MAX_NAME} characters without space, < > {{ }}"
        )
        raise StructureError("name", reason)
    return name


@dataclass(frozen=True, slots=True)
class Callee:
    """The tool that a label names."""

    name: str
    call_id: str | None = None
    """The id of the call; None for a new id."""


FindCallee = Callable[[str, dict[str, Any] | None], Callee | None]
"""Returns the called tool for a label and arguments, None if it is not known.

The arguments are None before they are read.
"""


class SectionStream(JsonToolStream):
    """One output in a `SectionForm`."""

    def __init__(self, context: ParseContext, form: SectionForm, find_callee: FindCallee) -> None:
        super().__init__(context, (form.section_begin, form.call_begin))
        self._form = form
        self._find_callee = find_callee
        self._label = ""

    def _is_announced(self) -> bool:
        if self._read == self._read_between:
            return not self._lead
        return self._read not in (self._read_head, self._read_held)

    def _begin_head(self, lead: str) -> None:
        super()._begin_head(lead)
        if lead == self._form.section_begin:
            self._read = self._read_between

    def _read_between(self, pieces: list[Piece]) -> bool:
        form = self._form
        self._seen = at = end_of(BLANK, self._text, self._seen)
        if self._text.startswith(form.call_begin, at):
            lead = self._take(at + len(form.call_begin))
            self._begin_head(self._lead + lead if self._lead else lead.lstrip())
        elif self._text.startswith(form.section_end, at) and not self._lead:
            self._take(at + len(form.section_end))
            self._read = self._read_content
        elif self._may_come(at, form.call_begin, form.section_end):
            return False
        else:
            return self._reject_call(pieces)
        return True

    def _may_come(self, at: int, *markers: str) -> bool:
        rest = self._text[at : at + MAX_HEAD]
        return any(marker.startswith(rest) for marker in markers)

    def _read_head(self, pieces: list[Piece]) -> bool:
        text = self._text[self._at : self._at + MAX_HEAD]
        head = self._form.read_head(text)
        if head is None or (head == "" and len(text) == MAX_HEAD):
            return self._reject_call(pieces)
        if isinstance(head, str):
            return False
        self._label, end = head
        callee = self._find_callee(self._label, None)
        if callee is None:
            # The head stays held, because this may not be a call. If it is none, the text is read
            # only once more: markers outside of strings are not JSON, and an open string ends with
            # the first quote of the next call.
            self._seen = self._at + end
            self._scanner, self._read = JsonScanner(), self._read_held
        else:
            self._take(self._at + end)
            self._announce(callee.name, pieces, callee.call_id)
            self._read = self._read_start
        return True

    def _take_call(self, held: str, pieces: list[Piece]) -> bool:
        begin = held.find("{")
        callee = None
        if begin >= 0 and (arguments := _as_object(held[begin:])) is not None:
            callee = self._find_callee(self._label, arguments)
        if callee is None:
            return self._reject_call(pieces)
        self._take(self._seen)
        self._announce(callee.name, pieces, callee.call_id)
        return self._end_arguments(held[begin:], pieces)

    def _read_start(self, pieces: list[Piece]) -> bool:
        """Reads up to the arguments of an announced call."""
        self._take(end_of(BLANK, self._text, self._at))
        if self._text.startswith("{", self._at):
            self._scanner, self._read = JsonScanner(), self._read_arguments
        elif self._text.startswith((self._form.call_end, _FENCE), self._at):
            return self._end_arguments("{}", pieces)
        elif self._may_come(self._at, self._form.call_end, _FENCE):
            return False
        else:
            self._read = self._read_broken
        return True

    def _read_broken(self, pieces: list[Piece]) -> bool:
        """Reads arguments that are not JSON up to the end mark; the client gets them unchanged."""
        at = self._text.find(self._form.call_end, self._at)
        end = beginning_of(self._form.call_end, self._text, self._at) if at < 0 else at
        arguments = self._take(end)
        if at < 0:
            self._add_arguments(arguments, pieces)
            return False
        return self._end_arguments(arguments, pieces)

    def _end_arguments(self, arguments: str, pieces: list[Piece]) -> bool:
        self._add_arguments(arguments, pieces)
        self._add_end(pieces)
        self._read = self._read_tail
        return True

    def _read_tail(self, pieces: list[Piece]) -> bool:
        form = self._form
        self._seen = at = end_of(BLANK, self._text, self._seen)
        if self._text.startswith(_FENCE, at):
            self._take(at + len(_FENCE))
        elif self._text.startswith(form.call_end, at):
            self._take(at + len(form.call_end))
            self._lead, self._read = "", self._read_between
        elif self._may_come(at, _FENCE, form.call_end):
            return False
        else:
            self._lead, self._read = "", self._read_between
        return True


def _as_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
