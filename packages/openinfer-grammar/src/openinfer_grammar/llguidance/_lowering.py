"""Grammars of the contract, lowered to llguidance's JSON schemas, regexes and Lark grammars."""

import json
from typing import Any, NamedTuple

from openinfer_contract import Grammar
from openinfer_grammar._grammar_text import (
    ANY_OBJECT,
    check_characters,
    check_text,
    lark_string,
    parse_choices,
    parse_json,
    parse_schema,
)
from openinfer_grammar._nesting import check_levels
from openinfer_grammar._structural_tag import lower_structural_tag
from openinfer_grammar.errors import GrammarRefused

JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Spelling of JSON, as `json.dumps` and chat templates write it. A fixed spelling keeps a model
from adding endless white space, and forces long runs of tokens."""


class Lowered(NamedTuple):
    """A grammar as llguidance reads it."""

    kind: str
    """`json_schema`, `lark` or `regex`."""
    text: str
    levels: int
    """Upper bound of the levels that the library recurses over, for `call_with_stack`."""


def lower(grammar: Grammar) -> Lowered:
    """Lowers a grammar to one that llguidance reads.

    Raises:
        GrammarRefused: the text is not of its kind, too long, or nested too deeply.
    """
    check_text(grammar)
    try:
        kind, text = _lowered(grammar)
        levels = check_levels(kind, text)
    except RecursionError as error:
        raise GrammarRefused("is nested too deeply") from error
    check_characters(text)
    return Lowered(kind, text, levels)


def _lowered(grammar: Grammar) -> tuple[str, str]:
    if grammar.kind == "json_object":
        return "json_schema", json.dumps(with_form(ANY_OBJECT))
    if grammar.kind == "json_schema":
        return "json_schema", json.dumps(with_form(parse_schema(grammar.text)))
    if grammar.kind == "regex":
        return "regex", grammar.text
    if grammar.kind == "choice":
        return "lark", "start: " + " | ".join(map(lark_string, parse_choices(grammar.text)))
    if grammar.kind == "structural_tag":
        return "lark", lower_structural_tag(parse_json(grammar.text), with_form)
    return "lark", _as_lark(grammar.text)


def with_form(schema: Any) -> dict[str, Any]:
    """Returns the schema with the spelling of `JSON_FORM`, unless it sets its own."""
    if schema is False:
        raise GrammarRefused("nothing is valid against false")
    schema = {} if schema is True else schema
    assert isinstance(schema, dict), "it was parsed as a schema"
    own = schema.get("x-guidance")
    return {**schema, "x-guidance": JSON_FORM | (own if isinstance(own, dict) else {})}


def _as_lark(text: str) -> str:
    """Returns a Lark grammar, converted from GBNF if it is GBNF."""
    if "::=" not in text:
        return text
    # The import is here because most grammars are JSON schemas and do not need it.
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:
        raise GrammarRefused(f"is not a GBNF grammar: {error}") from error
