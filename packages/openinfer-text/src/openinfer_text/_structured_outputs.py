"""Grammars of `structured_outputs` and `response_format`."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from openinfer_contract import Grammar
from openinfer_text.errors import StructureError

GrammarKind = Literal["json_schema", "regex", "choice", "grammar", "structural_tag"]

_KIND_OF_FIELD: Mapping[str, GrammarKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}
STRUCTURE_FIELDS = (*_KIND_OF_FIELD, "json_object")
"""Fields of `structured_outputs`; a request sets exactly one."""


def grammar_of_structure(structure: Mapping[str, Any]) -> Grammar:
    """Returns the grammar of `structured_outputs`.

    Args:
        structure: one of `json` (a JSON schema, as JSON or as text), `regex`, `choice` (strings),
            `grammar` (Lark or GBNF), `structural_tag` (as JSON or as text), `json_object` (true).

    Raises:
        StructureError: a field cannot be used; names it.
    """
    # False counts as absent, for `json_object` and for switches of other servers.
    asked = {
        name: value
        for name, value in structure.items()
        if value is not None and (value is not False or name in _KIND_OF_FIELD)
    }
    for name in asked:
        if name not in STRUCTURE_FIELDS:
            known = ", ".join(STRUCTURE_FIELDS)
            raise StructureError(name, f"is not supported; use one of {known}")
    if len(asked) != 1:
        raise StructureError("", f"must hold exactly one of {', '.join(STRUCTURE_FIELDS)}")
    ((name, value),) = asked.items()
    if name == "json_object":
        if value is not True:
            raise StructureError(name, "must be true")
        return Grammar(kind="json_object")
    return Grammar(kind=_KIND_OF_FIELD[name], text=_CHECKS[name](name, value))


def _as_json(name: str, value: Any) -> str:
    if not isinstance(value, str | dict):
        raise StructureError(name, "must be an object, or its JSON as a string")
    return value if isinstance(value, str) else json.dumps(value)


def _as_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise StructureError(name, "must be a string")
    return value


def _as_choices(name: str, value: Any) -> str:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not (is_list and value):
        raise StructureError(name, "must be a list of at least one string")
    for index, choice in enumerate(value):
        if not isinstance(choice, str):
            raise StructureError(f"{name}[{index}]", "must be a string")
    return json.dumps(list(value))


_CHECKS: Mapping[str, Callable[[str, Any], str]] = {
    "json": _as_json,
    "regex": _as_text,
    "choice": _as_choices,
    "grammar": _as_text,
    "structural_tag": _as_json,
}


def grammar_of_response_format(response_format: Mapping[str, Any]) -> Grammar | None:
    """Returns the grammar of OpenAI's `response_format`; None for plain text.

    Raises:
        StructureError: a field cannot be used; names it.
    """
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(kind="json_object")
    if kind == "json_schema":
        described = response_format.get("json_schema")
        if not isinstance(described, Mapping):
            raise StructureError("json_schema", "must be an object with a schema")
        schema = described.get("schema")
        if not isinstance(schema, Mapping):
            raise StructureError("json_schema.schema", "must be a JSON schema, an object")
        return Grammar(kind="json_schema", text=json.dumps(schema))
    if kind == "structural_tag":
        return Grammar(kind="structural_tag", text=json.dumps(response_format))
    raise StructureError("type", "must be text, json_object, json_schema or structural_tag")
