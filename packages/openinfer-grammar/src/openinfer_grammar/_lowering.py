"""The contract's grammars as llguidance spells them: a JSON schema, a regex or a Lark grammar."""

import json
from typing import Any, NamedTuple

from openinfer_contract import Grammar
from openinfer_grammar._nesting import check_levels
from openinfer_grammar._structural_tag import lower_structural_tag
from openinfer_grammar.errors import GrammarRefused

JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is spelled: as `json.dumps` and chat templates do. No white space that a model could
go on with for ever, and long runs of tokens that are forced."""

ANY_OBJECT = {"type": "object"}


MAX_GRAMMAR_CHARS = 1 << 18
"""Of a grammar's text. What stays below compiles in a second at most."""


def check_text(grammar: Grammar) -> None:
    """Looks for what no backend can read.

    Raises:
        GrammarRefused: the text is too long, or is no text.
    """
    text = grammar.text
    if len(text) > MAX_GRAMMAR_CHARS:
        raise GrammarRefused(f"has {len(text)} characters, at most {MAX_GRAMMAR_CHARS} go")
    check_characters(text)


def check_characters(text: str) -> None:
    """Looks for what the library's strings cannot hold.

    Raises:
        GrammarRefused: there is a NUL character, or half of a surrogate pair.
    """
    if "\0" in text:
        raise GrammarRefused("must not hold a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarRefused(f"is not valid Unicode: {error.reason}") from error


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


def parse_json(text: str) -> Any:
    """The text as JSON.

    Raises:
        GrammarRefused: it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"is not JSON: {error}") from error


def parse_schema(text: str) -> Any:
    """The text as a JSON schema.

    Raises:
        GrammarRefused: it is neither an object nor a boolean.
    """
    schema = parse_json(text)
    if not isinstance(schema, dict | bool):
        raise GrammarRefused("a JSON schema is an object or a boolean")
    return schema


def parse_choices(text: str) -> list[str]:
    """The text as a list of choices.

    Raises:
        GrammarRefused: it is no list of strings, or an empty one.
    """
    choices = parse_json(text)
    if not (isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices)):
        raise GrammarRefused("choices are a list of at least one string")
    return choices


def lark_string(text: str) -> str:
    """A string literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


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
