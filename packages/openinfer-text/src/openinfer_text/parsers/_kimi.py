"""The `kimi_k2` tool parser: calls whose ids name the tool, `functions.NAME:COUNT`.

The count runs through the whole conversation. The model writes an id and reads the ids of earlier
calls. If those have another form (`call_...` of some client, or a count that restarts), the model
writes such ids itself, and the tool's name cannot be read from them. Therefore

- earlier calls are renamed before the template sees them (`rename_call`),
- an id that the model writes is kept, unless its count is taken: then it gets the next count,
- a label without a name (`call00003`, `3`) is resolved by the arguments: the tool is the only one
  that has all of their keys and requires no other key.
"""

import re
from collections.abc import Mapping
from typing import Any

from openinfer_text.parsers._call_grammar import Tag, json_call
from openinfer_text.parsers._output_parser import ParseContext
from openinfer_text.parsers._sections import (
    LABEL,
    Callee,
    SectionForm,
    SectionParser,
    SectionStream,
    callable_name,
)
from openinfer_text.parsers._tool_schemas import ToolSchemas

SECTION_BEGIN = "<|tool_calls_section_begin|>"
_ARGUMENT_BEGIN = "<|tool_call_argument_begin|>"
_FORM = SectionForm(
    section_begin=SECTION_BEGIN,
    section_end="<|tool_calls_section_end|>",
    call_begin="<|tool_call_begin|>",
    call_end="<|tool_call_end|>",
    head=(LABEL, _ARGUMENT_BEGIN),
)
_CALL_ID = re.compile(r"functions\.(.+):(\d+)")
_WRITTEN = re.compile(r"(?:functions\.)?(.+):(\d+)")
_WITHOUT_MARKS = re.compile(r"functions\.?(.+?):?(\d+)")
_COUNT = "0|[1-9][0-9]{0,3}"
_COUNT_ONLY = re.compile(r"(?:call_?)?(\d+)")


class KimiParser(SectionParser):
    """Tool calls as Kimi-K2 writes them."""

    name = "kimi_k2"

    def __init__(self) -> None:
        super().__init__(_FORM)

    def claims(self, template: str, /) -> bool:
        """Returns whether a template contains the section's first token."""
        return SECTION_BEGIN in template

    def rename_call(self, call_id: str, name: str, index: int) -> str:
        """Returns the id that the model reads for the conversation's call `index`, from 0."""
        return call_id if _CALL_ID.fullmatch(call_id) else f"functions.{name}:{index}"

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> list[Tag]:
        """See `CallForm.call_tags`; the model chooses the count in the label."""
        begin = f"{_FORM.call_begin}functions.{callable_name(function)}:"
        call = json_call(begin, parameters, _FORM.call_end)
        count = {"type": "regex", "pattern": _COUNT}
        mark = {"type": "const_string", "value": _ARGUMENT_BEGIN}
        call["content"] = {"type": "sequence", "elements": [count, mark, call["content"]]}
        return [call]

    def start(self, context: ParseContext, /) -> SectionStream:
        """Returns a parser for one output."""
        return SectionStream(context, _FORM, _Callees(context).find)


class _Callees:
    """Finds tools and ids by label; keeps the counts of the conversation."""

    def __init__(self, context: ParseContext) -> None:
        self._schemas = ToolSchemas(context.tools)
        found = (_CALL_ID.fullmatch(call_id) for call_id in context.call_ids)
        self._counts = {int(match[2]) for match in found if match}
        # Calls with ids of another form are counted as well.
        self._num_calls = len(context.call_ids)

    def find(self, label: str, arguments: dict[str, Any] | None) -> Callee | None:
        """Returns the tool named by a label, else the tool that fits the arguments."""
        if found := _WRITTEN.fullmatch(label):
            return self._called(found[1], int(found[2]))
        found = _WITHOUT_MARKS.fullmatch(label)
        if found and found[1] in self._schemas.names:
            return self._called(found[1], int(found[2]))
        if label in self._schemas.names:
            return self._called(label, None)
        if arguments is None:
            return None
        keys = set(arguments)
        fitting = [name for name in self._schemas.names if self._schemas.accepts(name, keys)]
        if len(fitting) != 1:
            return None
        found = _COUNT_ONLY.fullmatch(label)
        return self._called(fitting[0], int(found[1]) if found else None)

    def _called(self, name: str, count: int | None) -> Callee:
        if count is None or count in self._counts:
            count = max((self._num_calls - 1, *self._counts)) + 1
        self._counts.add(count)
        self._num_calls += 1
        return Callee(name, f"functions.{name}:{count}")
