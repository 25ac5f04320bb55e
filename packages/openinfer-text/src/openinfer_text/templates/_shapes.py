"""The shape of what a template is given: which ways through it a request takes.

A template branches on which messages there are and what follows what, on keys and types, and on
the words of its own that stand in texts (`'</think>' in content`). All of that is in the shape, and
the texts themselves are not. A shape is a frame (options, and tools as they are: they are the same
from turn to turn) and a set of features, one for every message and its neighbours' roles. So a
conversation that goes on in known ways brings nothing new.
"""

from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from jinja2 import nodes

from openinfer_text.templates._messages import ROLES

_MAX_WORDS = 16
_MAX_PLAIN_TEXT = 24
_MAX_INT = 2**63
_PLAIN = frozenset({"role", "type"})


def words_of(parsed: nodes.Template) -> tuple[str, ...]:
    """The words that a template looks for in texts."""
    places: list[nodes.Node | None] = []
    for call in parsed.find_all(nodes.Call):
        places += call.args
    for comparison in parsed.find_all(nodes.Compare):
        places += [comparison.expr, *(operand.expr for operand in comparison.ops)]
    words = (place.value for place in places if isinstance(place, nodes.Const))
    unique = dict.fromkeys(w for w in words if isinstance(w, str) and w.strip() and w not in ROLES)
    return tuple(unique)[:_MAX_WORDS]


class Shape(NamedTuple):
    """What a request has in common with others."""

    frame: Hashable
    features: frozenset[Hashable]


def shape_of(variables: Mapping[str, Any], words: Sequence[str]) -> Shape:
    """The shape of a template's variables."""
    messages = variables["messages"]
    roles = [None, *[message["role"] for message in messages], None]
    features = frozenset(
        [
            (roles[index], _kind(message, words), roles[index + 2])
            for index, message in enumerate(messages)
        ]
    )
    rest = [
        (name, _digest(value) if name == "tools" else _option(value, words))
        for name, value in sorted(variables.items())
        if name != "messages"
    ]
    return Shape((min(len(messages), 3), *rest), features)


def _digest(value: Any) -> Hashable:
    return None if value is None else blake2b(repr(value).encode("utf-8", "replace")).digest()


def _option(value: Any, words: Sequence[str]) -> Hashable:
    is_short = isinstance(value, str) and len(value) <= _MAX_PLAIN_TEXT
    return value if is_short else _kind(value, words)


def _kind(value: Any, words: Sequence[str]) -> Hashable:
    if isinstance(value, str):
        return _text_kind(value, words)
    # Containers become digests of a fixed size. A tuple that held the kinds of its items several
    # times would take time exponential in the depth of the nesting to hash and to compare.
    if isinstance(value, dict):
        return _digest(
            [
                (key, item if key in _PLAIN and isinstance(item, str) else _kind(item, words))
                for key, item in value.items()
            ]
        )
    if isinstance(value, list | tuple):
        kinds = [repr(_kind(item, words)) for item in value]
        return _digest((min(len(kinds), 3), sorted(set(kinds)), kinds[:1], kinds[-1:]))
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return "int", -_MAX_INT <= value < _MAX_INT, value > 0
    # Numbers with exponents are not written alike.
    return type(value).__name__, "e" in repr(value) or "n" in repr(value)


def _text_kind(text: str, words: Sequence[str]) -> Hashable:
    if not text:
        return ""
    found: tuple[Hashable, ...] = ()
    for word in words:
        if word in text:
            is_often = text.count(word) > 1
            found += (word, text.startswith(word), text.endswith(word), is_often)
    return text.isspace(), found
