"""The contract's grammars as llguidance spells them: a JSON schema, a regex or a Lark grammar."""

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
"""How JSON is spelled: as `json.dumps` and chat templates do. No white space that a model could
go on with for ever, and long runs of tokens that are forced."""


class Lowered(NamedTuple):
    """A grammar in llguidance's terms."""

    kind: str
    """`json_schema`, `lark` or `regex`."""
    text: str
    levels: int
    """Upper bound of the levels that the library recurses over, for `call_with_stack`."""


def lower(grammar: Grammar) -> Lowered:
    """The grammar in llguidance's terms.

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
    """The schema with the spelling of `JSON_FORM`, where it does not ask for its own."""
    if schema is False:
        raise GrammarRefused("nothing is valid against false")
    schema = {} if schema is True else schema
    assert isinstance(schema, dict), "it was parsed as a schema"
    own = schema.get("x-guidance")
    return {**schema, "x-guidance": JSON_FORM | (own if isinstance(own, dict) else {})}


def _as_lark(text: str) -> str:
    """A Lark grammar, out of GBNF if it is one."""
    if "::=" not in text:
        return text
    # Loaded where it is needed: most grammars are JSON schemas.
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:
        raise GrammarRefused(f"is no GBNF grammar: {error}") from error
