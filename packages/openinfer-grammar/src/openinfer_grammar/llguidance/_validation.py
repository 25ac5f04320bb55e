"""The check of a grammar without a vocabulary, for front ends."""

import json
import re
from collections.abc import Callable
from typing import Any

from openinfer_contract import Grammar
from openinfer_grammar._grammar_text import parse_json, parse_schema
from openinfer_grammar._nesting import call_with_stack
from openinfer_grammar._schema_faults import find_fault
from openinfer_grammar.errors import GrammarRefused
from openinfer_grammar.llguidance._lowering import Lowered, lower, with_form

_Finds = Callable[[Any], str | None]

_OPTION_FOR_ONE_OF = "coerce_one_of"
_ONE_OF = (
    "oneOf is taken only where its branches are sure to exclude each other; write anyOf, or tell "
    "them apart: each by a type of its own, or by a required property with a const of its own"
)
"""Replaces a message of the library that recommends an option which clients cannot set."""


def validate(grammar: Grammar) -> None:
    """Checks that the default backend can honour a grammar.

    A check usually takes less than a millisecond, nearly all of it in native code. Any thread.

    Raises:
        GrammarRefused: it cannot; names the JSON schema keyword, or the type of a structural tag.
    """
    lowered = lower(grammar)
    call_with_stack(lowered.levels, lambda: _validate(grammar, lowered))


def _validate(grammar: Grammar, lowered: Lowered) -> None:
    error = _error(lowered.kind, lowered.text)
    if error is None:
        return
    try:
        _name_keyword(grammar, error)
    except RecursionError:
        pass  # nested too deeply for the search; the library's own message is raised
    raise GrammarRefused(error)


def _name_keyword(grammar: Grammar, error: str) -> None:
    """Raises GrammarRefused with the keyword at fault, if it is found."""
    if grammar.kind == "json_schema":
        raise _at_keyword(parse_schema(grammar.text), "", error)
    if grammar.kind == "structural_tag":
        _validate_schemas(parse_json(grammar.text), "")


def _validate_schemas(part: Any, where: str) -> None:
    """Raises GrammarRefused with the keyword at fault in a schema of a structural tag."""
    items = part.items() if isinstance(part, dict) else enumerate(part)
    for key, value in items:
        place = f"{where}.{key}" if where else str(key)
        if key in ("json_schema", "schema") and isinstance(value, dict):
            error = _schema_error(value)
            if error is not None:
                raise _at_keyword(value, place, error)
        elif isinstance(value, dict | list):
            _validate_schemas(value, place)


def _at_keyword(schema: Any, where: str, error: str) -> GrammarRefused:
    fault = find_fault(schema, _schema_error)
    if fault is None:
        return GrammarRefused(error, where=where)
    path = ".".join(part for part in (where, *fault.path) if part)
    return GrammarRefused(fault.reason, keyword=fault.keyword, where=path)


def _schema_error(schema: Any) -> str | None:
    try:
        return _error("json_schema", json.dumps(with_form(schema)))
    except GrammarRefused as refused:
        return refused.reason


def _error(kind: str, text: str) -> str | None:
    # The import is here because it takes 45 ms and 9 MB, which most servers never need.
    from llguidance import LLMatcher

    if kind == "json_schema":
        text = LLMatcher.grammar_from_json_schema(text)
    elif kind == "regex":
        text = LLMatcher.grammar_from_regex(text)
    has_failed, messages = LLMatcher.validate_grammar_with_warnings(text)
    if not has_failed:
        return None
    message = str(messages[0]).strip()
    if _OPTION_FOR_ONE_OF in message:
        return _ONE_OF
    if kind == "regex":
        # The library reads the regex as a rule of a grammar, so its line and column are wrong for
        # the regex.
        message = re.sub(r"^at \d+\(\d+\): |\n +\d+ \| start: .*", "", message, flags=re.DOTALL)
    return message
