"""Which keyword of a JSON schema is at fault, found by trying parts of it."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_MAX_TRIES = 256
_MAX_SECONDS = 0.5
"""Of looking for one keyword: large definitions are compiled anew in every try."""
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", *_DEFINITIONS)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "contains", "if", "then")


class _GaveUp(Exception):
    """The keyword at fault has not been found in time."""


class Fault(NamedTuple):
    """A keyword that cannot be honoured."""

    keyword: str
    path: tuple[str, ...]
    """From the root of the schema to the keyword, itself included."""
    reason: str


def find_fault(schema: Any, error_of: Callable[[Any], str | None]) -> Fault | None:
    """The keyword at fault in a schema that is refused, None if no single one is found.

    Goes down into the first part that is refused on its own, then looks for the keyword whose
    removal heals what is left.

    Args:
        schema: refused as a whole.
        error_of: why a schema is refused, None if it is not.
    """
    tries, give_up_at = 0, time.monotonic() + _MAX_SECONDS

    def check(part: Any) -> str | None:
        nonlocal tries
        tries += 1
        if tries > _MAX_TRIES or time.monotonic() > give_up_at:
            raise _GaveUp
        return error_of(part)

    try:
        return _found(schema, check)
    except _GaveUp:
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
    """The keyword at fault in a part whose own parts are all right."""
    whole = {**definitions, **part}
    error = check(whole)
    if error is None:
        return None
    places = {key: re.search(rf"(?<!\w){re.escape(key)}(?!\w)", error) for key in part}
    named = {key: found.start() for key, found in places.items() if found is not None}
    healing = (key for key in part if check({k: v for k, v in whole.items() if k != key}) is None)
    # Of several that are named the first: the others may be advice.
    keyword = min(named, key=named.__getitem__) if named else next(healing, None)
    return None if keyword is None else Fault(keyword, (*path, keyword), " ".join(error.split()))


def _children(part: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Schemas within a schema, with their place."""
    # Definitions come first: what refers to one that is at fault is refused for it.
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
    """The first keyword, and its place, that `is_known` denies; None if it knows them all.

    Args:
        schema: a JSON schema.
        is_known: asked of (keyword, the schema it stands in).
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
