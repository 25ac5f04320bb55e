"""The `deepseek_v3` and `deepseek_v31` tool parsers: calls between DeepSeek's marker tokens.

V3 and R1 write the tool's type, its name, and the arguments in a Markdown fence. V3.1 writes only
the name and the arguments.
"""

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

SECTION_BEGIN = "<｜tool▁calls▁begin｜>"
_FENCE = "```json"
_SEPARATOR = "<｜tool▁sep｜>"


def _form(*head: str | None, separator: str) -> SectionForm:
    return SectionForm(
        section_begin=SECTION_BEGIN,
        section_end="<｜tool▁calls▁end｜>",
        call_begin="<｜tool▁call▁begin｜>",
        call_end="<｜tool▁call▁end｜>",
        head=head,
        separator=separator,
    )


def _find_callee(label: str, arguments: dict[str, Any] | None, /) -> Callee:
    return Callee(label)


class DeepSeekParser(SectionParser):
    """Tool calls of one generation of DeepSeek's models; see `V3` and `V31`."""

    def __init__(self, name: str, form: SectionForm, *, is_fenced: bool) -> None:
        super().__init__(form)
        self.name = name
        self._is_fenced = is_fenced

    def claims(self, template: str, /) -> bool:
        """Returns whether a template contains the section's first token, with or without fences."""
        return SECTION_BEGIN in template and (_FENCE in template) == self._is_fenced

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> list[Tag]:
        """See `CallForm.call_tags`."""
        parts = (callable_name(function) if part is LABEL else part for part in self._form.head)
        begin, end = "".join((self._form.call_begin, *parts)), self._form.call_end
        if self._is_fenced:
            begin, end = begin.removesuffix(_FENCE) + f"\n{_FENCE}\n", f"\n```{end}"
        return [json_call(begin, parameters, end)]

    def start(self, context: ParseContext, /) -> SectionStream:
        """Returns a parser for one output."""
        return SectionStream(context, self._form, _find_callee)


V3 = DeepSeekParser(
    "deepseek_v3",
    _form("function", _SEPARATOR, LABEL, _FENCE, separator="\n"),
    is_fenced=True,
)
V31 = DeepSeekParser("deepseek_v31", _form(LABEL, _SEPARATOR, separator=""), is_fenced=False)
