"""Grammars of tool calls: for required calls, and for tools whose arguments are `strict`."""

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
    """The form in which a model writes calls; an optional interface of a `ParserFactory`.

    Attributes:
        call_triggers: texts that begin a call, or a section of calls, in free text.
        call_section: texts before the first call and after the last one; two empty strings if
            calls have no section.
        call_separator: text between two calls.
    """

    @property
    def call_triggers(self) -> Sequence[str]: ...

    @property
    def call_section(self) -> tuple[str, str]: ...

    @property
    def call_separator(self) -> str: ...

    def call_tags(self, function: Mapping[str, Any], parameters: Any, /) -> Sequence[Tag]:
        """Returns the ways to write a call: the model's usual way first, then others for free text.

        The parser must read every text that they allow as one call of the function.

        Args:
            function: OpenAI's definition of the function, checked.
            parameters: schema of the arguments; None allows any arguments.

        Raises:
            StructureError: calls of this function cannot be restricted; names its field.
        """


def json_call(begin: str, parameters: Any, end: str) -> Tag:
    """Returns a call whose arguments are one JSON object between two texts."""
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
    """Returns a grammar that restricts an output to calls of `tools`.

    Args:
        form: the form of the model's calls.
        tools: OpenAI's definitions, at least one.
        is_required: if True, the output consists of calls, and all arguments follow their schemas.
            If False, calls stand in free text, and only arguments of `strict` tools follow them.
        is_single: at most one call.
        named: the only tool that may be called; None for any.
        otherwise: a grammar for JSON that is allowed instead of calls; free text is not allowed
            then.

    Raises:
        StructureError: calls of a tool cannot be restricted in this form; names the field, such as
            `tools[0].function.name`.
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
        # In free text the parser accepts calls outside of sections as well.
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
    """Returns the form of one call, or of several."""
    calls = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": form.call_separator,
        "at_least_one": True,
        "stop_after_first": is_single,
    }
    begin, end = form.call_section
    return {"type": "tag", "begin": begin, "content": calls, "end": end} if begin else calls
