"""Values of call parameters, from text to JSON by the types that the tool's schema allows."""

import json
from collections.abc import Set
from math import isfinite
from typing import Any, NoReturn

_NULLS = ("null", "None")


def is_string(kinds: Set[str]) -> bool:
    """Returns whether a value of these types is always text; True if no type is known."""
    return kinds <= {"string"}


def may_be_null(first: str) -> bool:
    """Returns whether a value that begins with these characters, at most 4, may be null."""
    return any(word.startswith(first) for word in _NULLS)


def json_of_text(text: str) -> str:
    """Returns a text as JSON writes it between quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_of_value(text: str, kinds: Set[str]) -> str:
    """Returns a complete value as JSON; a string unless the schema allows its apparent type.

    `null`, `true` and `false` may have JSON's spelling, or Python's, which templates write.
    """
    word = text.strip()
    if "null" in kinds and word in _NULLS:
        return "null"
    if "boolean" in kinds and word.lower() in ("true", "false"):
        return word.lower()
    value = _loads(word)
    if (
        ("integer" in kinds and _is_whole(value))
        or ("number" in kinds and _is_number(value))
        or ("object" in kinds and isinstance(value, dict))
        or ("array" in kinds and isinstance(value, list))
    ):
        return word
    return json.dumps(text, ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == value // 1


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
