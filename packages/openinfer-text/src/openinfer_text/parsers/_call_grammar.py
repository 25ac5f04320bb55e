"""Tool calls as a grammar: those that a request demands, or whose arguments it wants held."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from openinfer_contract import Grammar
from openinfer_text.errors import StructureError
from openinfer_text.parsers._tool_schemas import object_schema

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
NO_ARGUMENTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}

Tag = dict[str, Any]
"""A `tag` of a structural tag: `begin`, `content`, `end`."""


@runtime_checkable
class CallForm(Protocol):
    """How a tool parser's model writes calls; a `ParserFactory` may have it besides.

    Attributes:
        call_triggers: what a call, or a section of calls, begins with in free text.
        call_section: what stands in front of an answer's first call and behind its last one; two
            empty strings where calls stand alone.
        call_separator: what stands between two calls.
    """

    @property
    def call_triggers(self) -> Sequence[str]: ...

    @property
    def call_section(self) -> tuple[str, str]: ...

    @property
    def call_separator(self) -> str: ...

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Tag]:
        """The ways to write a call, the model's own first; the others it may use in free text.

        All that they let through must be what the parser reads as one call of the function.

        Args:
            function: OpenAI's definition of it, checked.
            parameters: the schema that arguments are held to; None: any arguments.

        Raises:
            StructureError: calls of this function cannot be held; names the field within it.
        """


def json_call(begin: str, parameters: Any, end: str) -> Tag:
    """A call whose arguments are one JSON object between two texts."""
    schema = ANY_ARGUMENTS if parameters is None else parameters
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def grammar_of_calls(
    form: CallForm,
    tools: Sequence[Mapping[str, Any]],
    *,
    is_required: bool,
    is_single: bool,
    named: str | None = None,
    otherwise: Grammar | None = None,
) -> Grammar:
    """Holds an answer to calls of `tools`.

    Args:
        form: how the model writes them.
        tools: OpenAI's definitions, at least one.
        is_required: nothing but calls, every one with arguments of its tool's schema. Otherwise
            calls stand in free text, and arguments of tools that are `strict` follow the schema.
        is_single: one call at most.
        named: the one tool that may be called, None for any.
        otherwise: instead of calls the answer may be this JSON; there is no free text then.

    Raises:
        StructureError: the model cannot write calls of a tool so that they can be held; names the
            field, such as `tools[0].function.name`.
    """
    written = [
        _tags(form, index, tool["function"], is_held=is_required)
        for index, tool in enumerate(tools)
        if named in (None, tool["function"]["name"])
    ]
    own = _section(form, [tags[0] for tags in written], is_single=is_single)
    if is_required or otherwise is not None:
        calls = own
    else:
        # In free text the parser takes calls outside of sections, too.
        tags = [own] if own["type"] == "tag" else []
        tags += [tag for ways in written for tag in ways]
        calls = {"type": "triggered_tags", "triggers": list(form.call_triggers), "tags": tags}
        calls["stop_after_first"] = is_single
    if otherwise is not None:
        schema = json.loads(otherwise.text) if otherwise.text else ANY_ARGUMENTS
        calls = {"type": "or", "elements": [{"type": "json_schema", "json_schema": schema}, calls]}
    text = json.dumps({"type": "structural_tag", "format": calls})
    return Grammar(kind="structural_tag", text=text)


def _tags(
    form: CallForm, index: int, function: Mapping[str, Any], *, is_held: bool
) -> Sequence[Tag]:
    parameters = None
    if is_held or function.get("strict"):
        parameters = object_schema(function.get("parameters") or NO_ARGUMENTS)
        if parameters is None:
            reason = "must be object: the arguments of a call are one"
            raise StructureError(f"tools[{index}].function.parameters.type", reason)
    try:
        return form.call_tags(function, parameters)
    except StructureError as error:
        reason = str(error).removeprefix(f"{error.field}: ")
        raise StructureError(f"tools[{index}].function.{error.field}", reason) from error


def _section(form: CallForm, tags: list[Tag], *, is_single: bool) -> dict[str, Any]:
    """One call or several, in the model's own way."""
    calls = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": form.call_separator,
        "at_least_one": True,
        "stop_after_first": is_single,
    }
    begin, end = form.call_section
    return {"type": "tag", "begin": begin, "content": calls, "end": end} if begin else calls
