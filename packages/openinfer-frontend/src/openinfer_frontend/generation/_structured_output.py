"""What a body asks of its answer's form: `response_format`, `structured_outputs`, forced calls."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openinfer_contract import Grammar
from openinfer_frontend._config import GrammarCheck
from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._generation_request import GenerationRequest
from openinfer_frontend.protocols.openai._chat_request import ChatRequest
from openinfer_text import (
    CallForm,
    StructureError,
    grammar_of_calls,
    grammar_of_response_format,
    grammar_of_structure,
)

_KEYWORD = re.compile(r"(\S+): (.*)", re.DOTALL)
"""A reason that begins with a JSON schema keyword and its place."""


@dataclass(frozen=True, slots=True)
class WantedForm:
    """A grammar, and the field of the body that asks for it."""

    grammar: Grammar
    param: str
    parts: Sequence[tuple[str, Grammar]] = ()
    """Fields that the grammar is made of, each with what it asks for by itself."""
    demand: str = ""
    """The field without which there were no grammar, if that is another one."""

    @property
    def exact_param(self) -> str:
        """The field within `param` that asks for it, if it is one alone."""
        alone = [field for field, part in self.parts if part is self.grammar]
        return alone[0] if alone else self.param


def wanted_form(request: GenerationRequest, tool_parser: object) -> WantedForm | None:
    """The form that a body asks for; None: any.

    Args:
        request: a body.
        tool_parser: of the model; calls are forced if it is a `CallForm`.

    Raises:
        ApiError: 400, naming the field that cannot be honoured.
    """
    form = _output_form(request)
    if not isinstance(request, ChatRequest) or not request.offered_tools:
        return form
    return _with_calls(request, request.offered_tools, form, tool_parser)


def _output_form(request: GenerationRequest) -> WantedForm | None:
    wanted, structure = request.response_format, request.structured_outputs
    form = None
    if wanted is not None:
        grammar = _read("response_format", grammar_of_response_format, wanted)
        form = None if grammar is None else _form_of_response_format(grammar)
    if structure is None:
        return form
    if form is not None:
        raise _wrong("structured_outputs", "cannot be combined with response_format")
    grammar = _read("structured_outputs", grammar_of_structure, structure)
    assert grammar is not None
    field = "json" if grammar.kind == "json_schema" else grammar.kind
    parts = [(f"structured_outputs.{field}", grammar)]
    return WantedForm(grammar, "structured_outputs", parts)


def _form_of_response_format(grammar: Grammar) -> WantedForm:
    is_schema = grammar.kind == "json_schema"
    parts = [("response_format.json_schema.schema", grammar)] if is_schema else ()
    return WantedForm(grammar, "response_format", parts)


def _read(
    param: str, read: Callable[[Mapping[str, Any]], Grammar | None], value: Mapping[str, Any]
) -> Grammar | None:
    try:
        return read(value)
    except StructureError as error:
        where = f"{param}.{error.field}" if error.field else param
        reason = str(error).removeprefix(f"{error.field}: ")
        raise ApiError(400, f"{where}: {reason}", param=where) from error


def _with_calls(
    request: ChatRequest,
    tools: Sequence[Mapping[str, Any]],
    form: WantedForm | None,
    tool_parser: object,
) -> WantedForm | None:
    choice = request.tool_choice
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    is_named = named is not None
    is_single = is_named or request.parallel_tool_calls is False
    is_required = is_named or choice == "required"
    if is_required and form is not None:
        raise _wrong("tool_choice", f"a call cannot be demanded together with {form.param}")
    is_strict = any(tool["function"].get("strict") for tool in tools)
    if not (is_required or is_strict or form is not None):
        return None
    if form is not None and form.grammar.kind not in ("json_schema", "json_object"):
        raise _wrong(form.param, "only JSON can be combined with tools")
    if not isinstance(tool_parser, CallForm):
        raise _wrong(
            "tool_choice" if is_required else "tools",
            "calls cannot be forced nor held to a schema: this model's tool parser does not say "
            "how they are written",
        )
    names = [tool["function"]["name"] for tool in tools]
    if is_named and named not in names:
        raise _wrong("tool_choice.function.name", "names none of the tools")
    try:
        grammar = grammar_of_calls(
            tool_parser,
            tools,
            is_required=is_required,
            is_single=is_single,
            named=named,
            otherwise=None if form is None else form.grammar,
        )
    except StructureError as error:
        raise ApiError(400, str(error), param=error.field) from error
    parts = [
        (f"tools[{index}].function.parameters", _schema(tool["function"]["parameters"]))
        for index, tool in enumerate(tools)
        if tool["function"].get("parameters")
    ]
    if form is None:
        return WantedForm(grammar, "tools", parts, demand="tool_choice" if is_required else "")
    return WantedForm(grammar, form.param, [*parts, *form.parts])


def _schema(schema: Mapping[str, Any]) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(schema))


def check_form(form: WantedForm, check: GrammarCheck) -> None:
    """Looks whether the form can be honoured.

    Raises:
        ApiError: 400, with the reason.
    """
    reason = check(form.grammar)
    if reason is None:
        return
    for field, part in form.parts:
        own = reason if part is form.grammar else check(part)
        if own is None:
            continue
        found = _KEYWORD.fullmatch(own) if part.kind == "json_schema" else None
        raise _wrong(f"{field}.{found[1]}", found[2]) if found else _wrong(field, own)
    raise _wrong(form.param, reason)


def _wrong(param: str, reason: str) -> ApiError:
    return ApiError(400, f"{param}: {reason}", param=param)
