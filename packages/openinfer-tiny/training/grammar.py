"""Patterns with choices: `[Hi|Hello] there` stands for "Hi there" and "Hello there".

A choice may be empty and may contain choices. `draw` picks one reading with a seeded generator,
and `readings` lists all of them in order. `load` reads a file of `text/`, in which `<rule>` stands
for the pattern with that name in the table `rules`.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

Node: TypeAlias = "str | list[Sequence]"
Sequence: TypeAlias = "list[Node]"

_TEXT = Path(__file__).with_name("text")

_cache: dict[str, Sequence] = {}


@cache
def load(name: str) -> dict[str, Any]:
    """Returns the content of `text/<name>.toml` with its rules filled in. It is read-only."""
    source = (_TEXT / f"{name}.toml").read_text()
    rules = tomllib.loads(source).get("rules", {})
    return tomllib.loads(re.sub(r"<(\w+)>", lambda match: rules[match[1]], source))


def draw(pattern: str, rng: Random) -> str:
    """Returns a random reading of `pattern`."""
    return _draw(_parse(pattern), rng)


def readings(pattern: str) -> list[str]:
    """Returns every reading of `pattern`; the leftmost choice varies slowest."""
    return _readings(_parse(pattern))


def article(noun: str) -> str:
    """Returns the noun with "a" or "an" before it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def sentence(text: str) -> str:
    """Returns the text with a capital first letter."""
    return text[0].upper() + text[1:]


def _draw(sequence: Sequence, rng: Random) -> str:
    return "".join(
        node if isinstance(node, str) else _draw(rng.choice(node), rng) for node in sequence
    )


def _readings(sequence: Sequence) -> list[str]:
    parts = [
        [node] if isinstance(node, str) else [text for option in node for text in _readings(option)]
        for node in sequence
    ]
    return ["".join(combination) for combination in product(*parts)]


def _parse(pattern: str) -> Sequence:
    if pattern not in _cache:
        sequence, end = _parse_sequence(pattern, 0, depth=0)
        if end != len(pattern):
            raise ValueError(f"unbalanced ']' at {end} in pattern {pattern!r}")
        _cache[pattern] = sequence
    return _cache[pattern]


def _parse_sequence(pattern: str, start: int, depth: int) -> tuple[Sequence, int]:
    sequence: Sequence = []
    literal = position = start
    while position < len(pattern):
        char = pattern[position]
        if char == "]" or (char == "|" and depth):
            break
        if char == "[":
            if literal < position:
                sequence.append(pattern[literal:position])
            options, position = _parse_options(pattern, position + 1, depth + 1)
            sequence.append(options)
            literal = position
        else:
            position += 1
    if literal < position:
        sequence.append(pattern[literal:position])
    return sequence, position


def _parse_options(pattern: str, start: int, depth: int) -> tuple[list[Sequence], int]:
    options: list[Sequence] = []
    position = start
    while True:
        option, position = _parse_sequence(pattern, position, depth)
        options.append(option)
        if position == len(pattern):
            raise ValueError(f"'[' without ']' in pattern {pattern!r}")
        if pattern[position] == "]":
            return options, position + 1
        position += 1
