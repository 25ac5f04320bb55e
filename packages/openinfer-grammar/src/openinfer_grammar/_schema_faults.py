"""Search for the keyword at fault in a refused JSON schema, by trying parts of it."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_MAX_TRIES = 256
_MAX_SECONDS = 0.5
"""Maximum seconds of the search for one keyword. Every try compiles large definitions again."""
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", *_DEFINITIONS)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "contains", "if", "then")


class _SearchLimit(Exception):
    """The search for the keyword reached its limit."""


class Fault(NamedTuple):
    """A keyword that cannot be honoured."""

    keyword: str
    path: tuple[str, ...]
    """Path from the root of the schema to the keyword, inclusive."""
    reason: str


def find_fault(schema: Any, error_of: Callable[[Any], str | None]) -> Fault | None:
    """Returns the keyword at fault in a refused schema; None if no single keyword is found.

    Descends into the first part that is refused on its own, then looks for the keyword whose
    removal makes that part acceptable.

    Args:
        schema: a refused schema.
        error_of: returns why a schema is refused, None if it is accepted.
    """
    tries, deadline = 0, time.monotonic() + _MAX_SECONDS

    def check(part: Any) -> str | None:
        nonlocal tries
        tries += 1
        if tries > _MAX_TRIES or time.monotonic() > deadline:
            raise _SearchLimit
        return error_of(part)

    try:
        return _found(schema, check)
    except _SearchLimit:
        return None


def _found(schema: Any, check: Callable[[Any], str | None]) -> Fault | None:
    def alone(part: Any) -> Any:
        return {**definitions, **part} if isinstance(part, Mapping) else part

    if not isinstance(schema, Mapping):
        return None
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
    path: tuple[str, ...] = ()
    part: Mapping[str, Any] = schema
    while True:
        refused = next((found for found in _children(part) if check(alone(found[1]))), None)
        if refused is None:
            return _at(part, path, definitions, check)
        step, child = refused
        path = (*path, *step)
        if not isinstance(child, Mapping):
            return Fault(step[0], path, "nothing is valid against false")
        part = child


def _at(
    part: Mapping[str, Any],
    path: tuple[str, ...],
    definitions: Mapping[str, Any],
    check: Callable[[Any], str | None],
) -> Fault | None:
    """Returns the keyword at fault in a part whose sub-schemas are all accepted."""
    whole = {**definitions, **part}
    error = check(whole)
    if error is None:
        return None
    places = {key: re.search(rf"(?<!\w){re.escape(key)}(?!\w)", error) for key in part}
    named = {key: found.start() for key, found in places.items() if found is not None}
    healing = (key for key in part if check({k: v for k, v in whole.items() if k != key}) is None)
    # If the message names several keywords, the first one is at fault. The others may be advice.
    keyword = min(named, key=named.__getitem__) if named else next(healing, None)
    return None if keyword is None else Fault(keyword, (*path, keyword), " ".join(error.split()))


def _children(part: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the schemas within a schema, with their paths."""
    # Definitions come first: a schema that refers to a refused definition is refused as well.
    for keyword, value in sorted(part.items(), key=lambda item: item[0] not in _DEFINITIONS):
        if keyword in _BY_NAME and isinstance(value, Mapping):
            for name, child in value.items():
                if isinstance(child, Mapping | bool):
                    yield (keyword, name), child
        elif keyword in _LISTS and isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, Mapping | bool):
                    yield (keyword, str(index)), child
        elif keyword in _SINGLE and isinstance(value, Mapping):
            yield (keyword,), value


def refused_keyword(
    schema: Any, is_known: Callable[[str, Mapping[str, Any]], bool]
) -> tuple[str, tuple[str, ...]] | None:
    """Returns the first keyword that `is_known` denies, and its path; None if there is none.

    Args:
        schema: a JSON schema.
        is_known: called with (keyword, the schema that contains it).
    """
    if not isinstance(schema, Mapping):
        return None
    for keyword in schema:
        if not is_known(keyword, schema):
            return keyword, (keyword,)
    for step, child in _children(schema):
        found = refused_keyword(child, is_known)
        if found is not None:
            return found[0], (*step, *found[1])
    return None
