"""Tool calls as a grammar: those that a request demands, or whose arguments it wants held."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from openinfer_contract import Grammar

_ANY_ARGUMENTS = {"type": "object"}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@runtime_checkable
class CallForm(Protocol):
    """How a tool parser's model writes a call; a `ParserFactory` may have it besides.

    Attributes:
        call_trigger: how every call begins.
        call_separator: what stands between two calls.
    """

    @property
    def call_trigger(self) -> str: ...

    @property
    def call_separator(self) -> str: ...

    def call_frame(self, name: str, /) -> tuple[str, str]:
        """What stands before and behind the arguments of a call of the tool `name`."""


def grammar_of_calls(
    form: CallForm,
    tools: Sequence[Mapping[str, Any]],
    *,
    is_required: bool,
    is_single: bool,
    otherwise: Grammar | None = None,
) -> Grammar:
    """Holds an answer to calls of `tools`.

    Args:
        form: how the model writes them.
        tools: OpenAI's definitions, at least one.
        is_required: nothing but calls, every one with arguments of its tool's schema. Otherwise
            calls stand in free text, and arguments of tools that are `strict` follow the schema.
        is_single: one call at most.
        otherwise: instead of calls the answer may be this JSON; there is no free text then.
    """
    tags = [_tag(form, tool["function"], is_held=is_required) for tool in tools]
    calls: dict[str, Any] = {"tags": tags, "stop_after_first": is_single}
    if is_required or otherwise is not None:
        calls |= {"type": "tags_with_separator", "separator": form.call_separator}
        calls["at_least_one"] = True
    else:
        calls |= {"type": "triggered_tags", "triggers": [form.call_trigger]}
    if otherwise is not None:
        schema = json.loads(otherwise.text) if otherwise.text else _ANY_ARGUMENTS
        calls = {"type": "or", "elements": [{"type": "json_schema", "json_schema": schema}, calls]}
    text = json.dumps({"type": "structural_tag", "format": calls})
    return Grammar(kind="structural_tag", text=text)


def _tag(form: CallForm, function: Mapping[str, Any], *, is_held: bool) -> dict[str, Any]:
    begin, end = form.call_frame(function["name"])
    schema: Mapping[str, Any] = _ANY_ARGUMENTS
    if is_held or function.get("strict"):
        schema = function.get("parameters") or _NO_ARGUMENTS
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": end}
