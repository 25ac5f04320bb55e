"""Constraints on the output: `response_format`, `structured_outputs`, forced tool calls."""

import json
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


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """A grammar, and the field of the body that asks for it."""

    grammar: Grammar
    param: str
    parts: Sequence[tuple[str, Grammar]] = ()
    """Fields from which the grammar is built, each with its own grammar."""
    demand: str = ""
    """The field that makes a grammar necessary, if that is not `param`: `tool_choice`."""

    @property
    def exact_param(self) -> str:
        """The field within `param` that asks for the grammar, if it is a single one."""
        alone = [field for field, part in self.parts if part is self.grammar]
        return alone[0] if alone else self.param


def output_constraint(request: GenerationRequest, tool_parser: object) -> OutputConstraint | None:
    """Returns the constraint that a body asks for, or None.

    Args:
        request: the body.
        tool_parser: the model's; calls can be forced if it is a `CallForm`.

    Raises:
        ApiError: 400, naming the field that cannot be honoured.
    """
    constraint = _text_constraint(request)
    if not isinstance(request, ChatRequest) or not request.offered_tools:
        return constraint
    return _with_calls(request, request.offered_tools, constraint, tool_parser)


def _text_constraint(request: GenerationRequest) -> OutputConstraint | None:
    wanted, structure = request.response_format, request.structured_outputs
    constraint = None
    if wanted is not None:
        grammar = _read("response_format", grammar_of_response_format, wanted)
        if grammar is not None:
            is_schema = grammar.kind == "json_schema"
            parts = [("response_format.json_schema.schema", grammar)] if is_schema else []
            constraint = OutputConstraint(grammar, "response_format", parts)
    if structure is None:
        return constraint
    if constraint is not None:
        raise ApiError.invalid("structured_outputs", "cannot be combined with response_format")
    grammar = _read("structured_outputs", grammar_of_structure, structure)
    assert grammar is not None
    field = "json" if grammar.kind == "json_schema" else grammar.kind
    parts = [(f"structured_outputs.{field}", grammar)]
    return OutputConstraint(grammar, "structured_outputs", parts)


def _read(
    param: str, read: Callable[[Mapping[str, Any]], Grammar | None], value: Mapping[str, Any]
) -> Grammar | None:
    try:
        return read(value)
    except StructureError as error:
        where = f"{param}.{error.field}" if error.field else param
        reason = str(error).removeprefix(f"{error.field}: ")
        raise ApiError.invalid(where, reason) from error


def _with_calls(
    request: ChatRequest,
    tools: Sequence[Mapping[str, Any]],
    constraint: OutputConstraint | None,
    tool_parser: object,
) -> OutputConstraint | None:
    choice = request.tool_choice
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    is_required = named is not None or choice == "required"
    if is_required and constraint is not None:
        reason = f"a call cannot be demanded together with {constraint.param}"
        raise ApiError.invalid("tool_choice", reason)
    is_strict = any(tool["function"].get("strict") for tool in tools)
    if not (is_required or is_strict or constraint is not None):
        return None
    if constraint is not None and constraint.grammar.kind not in ("json_schema", "json_object"):
        raise ApiError.invalid(constraint.param, "only JSON can be combined with tools")
    if not isinstance(tool_parser, CallForm):
        raise ApiError.invalid(
            "tool_choice" if is_required else "tools",
            "calls cannot be forced nor held to a schema: this model's tool parser does not say "
            "how they are written",
        )
    if named is not None and named not in [tool["function"]["name"] for tool in tools]:
        raise ApiError.invalid("tool_choice.function.name", "names none of the tools")
    try:
        grammar = grammar_of_calls(
            tool_parser,
            tools,
            is_required=is_required,
            is_single=named is not None or request.parallel_tool_calls is False,
            named=named,
            otherwise=None if constraint is None else constraint.grammar,
        )
    except StructureError as error:
        raise ApiError(400, str(error), param=error.field) from error
    parts = _parameter_schemas(tools)
    if constraint is None:
        demand = "tool_choice" if is_required else ""
        return OutputConstraint(grammar, "tools", parts, demand=demand)
    return OutputConstraint(grammar, constraint.param, [*parts, *constraint.parts])


def _parameter_schemas(tools: Sequence[Mapping[str, Any]]) -> list[tuple[str, Grammar]]:
    """Returns the schema of each tool's parameters as a grammar, with the field's name."""
    return [
        (
            f"tools[{index}].function.parameters",
            Grammar(kind="json_schema", text=json.dumps(tool["function"]["parameters"])),
        )
        for index, tool in enumerate(tools)
        if tool["function"].get("parameters")
    ]


def check_constraint(constraint: OutputConstraint, check: GrammarCheck) -> None:
    """Checks whether a grammar can be honoured.

    Raises:
        ApiError: 400 with the reason; it names the keyword of a JSON schema at fault.
    """
    reason = check(constraint.grammar)
    if reason is None:
        return
    for field, part in constraint.parts:
        own = reason if part is constraint.grammar else check(part)
        if own is None:
            continue
        # A reason about a JSON schema begins with the keyword: "uniqueItems: is not supported".
        keyword, colon, rest = own.partition(": ")
        if part.kind == "json_schema" and colon and not any(map(str.isspace, keyword)):
            raise ApiError.invalid(f"{field}.{keyword}", rest)
        raise ApiError.invalid(field, own)
    raise ApiError.invalid(constraint.param, reason)
