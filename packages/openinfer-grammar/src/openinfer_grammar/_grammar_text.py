"""The text of a grammar, read and checked in the same way for every backend."""

import json
from typing import Any

from openinfer_contract import Grammar
from openinfer_grammar.errors import GrammarRefused

ANY_OBJECT = {"type": "object"}

MAX_GRAMMAR_CHARS = 1 << 18
"""Maximum number of characters in a grammar's text; shorter texts compile in at most a second."""


def check_text(grammar: Grammar) -> None:
    """Checks that backends can read a grammar's text.

    Raises:
        GrammarRefused: it is too long, or not valid Unicode.
    """
    text = grammar.text
    if len(text) > MAX_GRAMMAR_CHARS:
        raise GrammarRefused(f"has {len(text)} characters, at most {MAX_GRAMMAR_CHARS} are allowed")
    check_characters(text)


def check_characters(text: str) -> None:
    """Checks that the library's strings can represent a text.

    Raises:
        GrammarRefused: it contains a NUL character, or half of a surrogate pair.
    """
    if "\0" in text:
        raise GrammarRefused("must not hold a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarRefused(f"is not valid Unicode: {error.reason}") from error


def parse_json(text: str) -> Any:
    """Parses a text as JSON.

    Raises:
        GrammarRefused: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"is not JSON: {error}") from error


def parse_schema(text: str) -> Any:
    """Parses a text as a JSON schema.

    Raises:
        GrammarRefused: it is neither an object nor a boolean.
    """
    schema = parse_json(text)
    if not isinstance(schema, dict | bool):
        raise GrammarRefused("a JSON schema is an object or a boolean")
    return schema


def parse_choices(text: str) -> list[str]:
    """Parses a text as a list of choices.

    Raises:
        GrammarRefused: it is not a list of strings, or an empty one.
    """
    choices = parse_json(text)
    if not (isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices)):
        raise GrammarRefused("choices are a list of at least one string")
    return choices


def lark_string(text: str) -> str:
    """Returns a string literal of Lark."""
    return json.dumps(text, ensure_ascii=False)
