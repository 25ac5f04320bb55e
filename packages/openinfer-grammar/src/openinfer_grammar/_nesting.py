"""A bound on the nesting of grammars, and threads with a stack that is large enough for it.

The grammar libraries recurse once for each level of a schema, for each `$ref` they follow and for
each Lark rule that a rule names. If the stack overflows, the process ends with SIGSEGV, so the
number of levels is bounded before a library sees a grammar. The measure is an upper bound: every
referenced part of a schema, and every rule, counts as if all of them were nested in one another.

Stack per level, measured with llguidance 1.9 on x86-64: 5.5 KB for a level of JSON, 3.2 KB for a
`$ref`, 3.3 KB for a Lark rule, 2 KB for a bracket. xgrammar 0.2 takes 0.3 KB for each bracket of a
pattern. `MAX_LEVELS` levels therefore need at most 45 MB of the 128 MB that a thread of this module
has; the stack is address space, and only its used pages take memory.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import unquote

from openinfer_grammar.errors import GrammarRefused

MAX_LEVELS = 8192
"""Maximum number of levels; a grammar with more is refused."""

_STACK_BYTES = 128 << 20
_MAX_LEVELS_HERE = 128
"""Grammars with at most this many levels (0.7 MB of stack) are compiled on the caller's thread."""
_LARK_LEVEL = re.compile(r"[:(\[{]")
_LARK_JSON = re.compile(r"%json\s*")

_starting = threading.Lock()
_Result = TypeVar("_Result")


def check_levels(kind: str, text: str) -> int:
    """Returns an upper bound of the levels at which a library would compile a grammar.

    Args:
        kind: `json_schema`, `lark` or `regex`.
        text: a grammar of that kind.

    Raises:
        GrammarRefused: it has more than `MAX_LEVELS` levels.
        RecursionError: its JSON is nested more deeply than Python can walk.
    """
    if kind == "regex":
        return 1  # the library bounds the nesting of a regex itself
    levels = _schema_levels(json.loads(text)) if kind == "json_schema" else _lark_levels(text)
    if levels > MAX_LEVELS:
        things = "$ref and nested schemas" if kind == "json_schema" else "rules and brackets"
        reason = f"is nested too deeply: {things} may make up {levels} levels, at most {MAX_LEVELS}"
        raise GrammarRefused(f"{reason} are taken; make the grammar smaller")
    return levels


def call_with_stack(levels: int, call: Callable[[], _Result]) -> _Result:
    """Calls a function on a stack for this many levels: on this thread, or on a new one.

    Raises:
        GrammarRefused: there is no memory for the new thread.
        Exception: whatever `call` raises.
    """
    if levels <= _MAX_LEVELS_HERE:
        return call()
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as raised:  # raised again by the caller
            errors.append(raised)

    thread = threading.Thread(target=run, name="openinfer-deep-grammar", daemon=True)
    with _starting:  # the size is a setting of the process, for threads that start from now on
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as refused:
            reason = "is nested too deeply for the memory that is free"
            raise GrammarRefused(reason) from refused
        finally:
            threading.stack_size(before)
    thread.join()
    for error in errors:
        raise error
    return results[0]


def _schema_levels(schema: Any) -> int:
    """Returns the levels of the schema, plus those of every part that a `$ref` names."""
    depths: dict[int, int] = {}
    references: set[str] = set()
    levels = _measure(schema, depths, references)
    whole = levels
    for reference in references:
        part = _part_at(schema, reference)
        # A reference that cannot be resolved here counts as the depth of the whole schema, its
        # maximum.
        levels += 1 + depths.get(id(part), whole)
    return levels


def _measure(part: Any, depths: dict[int, int], references: set[str]) -> int:
    """Returns the depth of a JSON value; adds the depths of its parts, by id, and its `$ref`s."""
    if isinstance(part, dict):
        reference = part.get("$ref")
        if isinstance(reference, str):
            references.add(reference)
        children: Any = part.values()
    elif isinstance(part, list):
        children = part
    else:
        return 0
    depth = 1 + max((_measure(child, depths, references) for child in children), default=0)
    depths[id(part)] = depth
    return depth


def _part_at(schema: Any, reference: str) -> Any:
    """Returns the part of a schema at a JSON pointer such as `#/$defs/a`; None if there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    part = schema
    for step in reference.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict):
            part = part.get(name)
        elif isinstance(part, list) and name.isascii() and name.isdecimal():
            part = part[int(name)] if len(name) < 9 and int(name) < len(part) else None
        else:
            return None
    return part


def _lark_levels(text: str) -> int:
    """Returns one level for every rule and bracket, and the levels of every schema."""
    return sum(
        _schema_levels(part) if isinstance(part, dict | list) else len(_LARK_LEVEL.findall(part))
        for part in _lark_parts(text)
    )


def _lark_parts(text: str) -> Iterator[Any]:
    """Yields the text of a Lark grammar in pieces, with the values of `%json` between them."""
    decoder, begin = json.JSONDecoder(), 0
    for found in _LARK_JSON.finditer(text):
        if found.end() < begin:
            continue  # inside the JSON of an earlier `%json`
        yield text[begin : found.start()]
        begin = found.end()
        try:
            value, begin = decoder.raw_decode(text, begin)
        except ValueError:
            continue  # no JSON follows, so its brackets count as Lark's
        yield value
    yield text[begin:]
