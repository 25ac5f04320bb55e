"""JSON schemas and structural tags as xgrammar takes them, or why it does not.

It honours fewer keywords than llguidance and drops the others without a word, or those beside
another one: what it does keep is listed here, and the rest is refused by name.
"""

import json
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from openinfer_grammar._schema_faults import refused_keyword
from openinfer_grammar.errors import GrammarRefused

_FREE = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$comment", "$defs", "definitions", "x-guidance"),
    }
)
"""Keywords that no output is held to."""
_WHOLE = ("$ref", "anyOf", "const", "enum")
"""Keywords that say all: of what stands beside them nothing is kept."""
_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are no schemas."""
_BY_NAME = frozenset({"properties", "$defs", "definitions"})
_OF_TYPE = {
    "minLength": "string",
    "maxLength": "string",
    "pattern": "string",
    "minimum": "integer",
    "maximum": "integer",
    "exclusiveMinimum": "integer",
    "exclusiveMaximum": "integer",
    "minItems": "array",
    "maxItems": "array",
    "required": "object",
}
"""Keywords that are kept in a schema of one type, named there."""
_ALONE = {
    "pattern": ("minLength", "maxLength"),
    "minimum": ("exclusiveMinimum",),
    "maximum": ("exclusiveMaximum",),
}
"""Keywords that are not kept beside others."""
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
}
_CHARACTERS = "\\x20-\\x21\\x23-\\x5b\\x5d-\ud7ff\ue000-\U0010ffff"
"""Those that stand in a string of JSON as they are, as ranges: a class of all others would let
bytes through that are no characters."""
_AROUND = re.compile(r"\(\?(?!:)|\\[bB]")
_BOUNDED = re.compile(r"\(\.\|\\n\)\{(\d+),(\d*)\}")
_PARTS = re.compile(r"\\(.)|\[(\^?)((?:\\.|[^\]])*)\]|(.)", re.DOTALL)
"""Of a regex: an escape, a class, a character."""
_PARTS_OF_CLASS = re.compile(r"(\\.|.)(?:-(\\.|.))?", re.DOTALL)
"""A member, or the first and the last one of a range."""
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}

_Ebnf = Callable[[dict[str, Any]], str]


def held_schema(schema: Any) -> dict[str, Any]:
    """The schema with nothing in it that an output would not be held to.

    Raises:
        GrammarRefused: naming the first keyword that is not kept.
    """
    if schema is False:
        raise GrammarRefused("nothing is valid against false")
    schema = {} if schema is True else schema
    found = refused_keyword(schema, _is_kept)
    if found is not None:
        keyword, path = found
        reason = "xgrammar does not hold an output to it"
        raise GrammarRefused(reason, keyword=keyword, where=".".join(path))
    held: dict[str, Any] = _spelled_out(schema)
    return held


def _is_kept(keyword: str, schema: Mapping[str, Any]) -> bool:
    if keyword in _FREE:
        return True
    whole = next((key for key in _WHOLE if key in schema), None)
    if keyword == whole:
        return keyword not in ("const", "enum") or _is_of_type(schema)
    if whole is not None:
        return keyword == "type" and whole in ("const", "enum")
    if any(other in schema for other in _ALONE.get(keyword, ())):
        return False
    if keyword == "pattern" and not is_held_regex(schema[keyword]):
        return False
    if keyword in _OF_TYPE:
        return bool(schema.get("type") == _OF_TYPE[keyword])
    return keyword in ("type", "properties", "additionalProperties", "items", "prefixItems")


def is_held_regex(pattern: Any) -> bool:
    """Whether a regex has nothing in it that is dropped: what it says of the text around."""
    return isinstance(pattern, str) and _AROUND.search(pattern) is None


def _is_of_type(schema: Mapping[str, Any]) -> bool:
    """Whether the values that it names are of its type, if it has one."""
    kinds = schema.get("type", [*_KINDS])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    values = [schema["const"]] if "const" in schema else schema["enum"]
    return isinstance(values, list) and all(
        any(_KINDS[kind](value) for kind in kinds if kind in _KINDS) for value in values
    )


def _spelled_out(part: Any) -> Any:
    """The schema with what this version of the library takes amiss said in another way."""
    if isinstance(part, list):
        return [_spelled_out(item) for item in part]
    if not isinstance(part, dict):
        return part
    plain: dict[str, Any] = {}
    for keyword, value in part.items():
        if keyword in _BY_NAME and isinstance(value, dict):
            # Names, which may be those of keywords.
            plain[keyword] = {name: _spelled_out(schema) for name, schema in value.items()}
        else:
            plain[keyword] = value if keyword in _DATA else _spelled_out(value)
    kind = part.get("type")
    if kind == "string" and ("minLength" in part or "maxLength" in part):
        # Strings of bounded length may hold control characters, which no JSON may.
        low, high = plain.pop("minLength", 0), plain.pop("maxLength", "")
        plain["pattern"] = f"^[{_CHARACTERS}]{{{low},{high}}}$"
    elif kind == "array" and "prefixItems" not in part and {"minItems", "maxItems"} & part.keys():
        plain.setdefault("items", {})  # without, an array with bounds is an empty one
    elif kind == "object" and isinstance(part.get("required"), list):
        _name_required(plain)
    return plain


def _name_required(schema: dict[str, Any]) -> None:
    """Makes properties of required names that are none: an output would not be held to them."""
    others = schema.get("additionalProperties", True)
    properties = dict(schema.get("properties") or {})
    for name in schema["required"]:
        if name not in properties and others is False:
            reason = f"{name} is required, and no property"
            raise GrammarRefused(reason, keyword="required", where="required")
        properties.setdefault(name, others)
    schema["properties"] = properties


def spelled_tag(tag: Mapping[str, Any], ebnf: _Ebnf) -> str:
    """A structural tag in the one form that this version of the library reads.

    Args:
        tag: of `lower_structural_tag`, which took it.
        ebnf: a schema as a grammar.

    Raises:
        GrammarRefused: naming what an output would not be held to.
    """
    form = tag.get("format")
    if form is None:
        tags = [
            {
                "type": "tag",
                "begin": item["begin"],
                "content": {"type": "json_schema", "json_schema": item.get("schema", True)},
                "end": item["end"],
            }
            for item in tag["structures"]
        ]
        form = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    return json.dumps({"type": "structural_tag", "format": _spelled_form(form, ebnf, "format")})


def _spelled_form(form: Any, ebnf: _Ebnf, where: str) -> Any:
    if isinstance(form, list):
        return [_spelled_form(item, ebnf, f"{where}.{i}") for i, item in enumerate(form)]
    if not isinstance(form, dict):
        return form
    if form.get("type") == "json_schema":
        return {"type": "grammar", "grammar": ebnf(held_schema(form.get("json_schema", True)))}
    if form.get("type") == "regex" and form.get("excludes"):
        return _without_excluded(form["pattern"], form["excludes"], where)
    return {key: _spelled_form(value, ebnf, f"{where}.{key}") for key, value in form.items()}


def _without_excluded(pattern: str, excludes: list[str], where: str) -> dict[str, Any]:
    """A regex whose text must not hold some others, which the library has no word for."""
    regex = {"type": "regex", "pattern": pattern}
    firsts = {text[0] for text in excludes}
    bounds = _BOUNDED.fullmatch(pattern)
    if bounds is not None:
        low, high = bounds.groups()
        if high and int(high) < min(map(len, excludes)):
            return regex
        if not high and (low == "0" or (low == "1" and len(firsts) == 1)):
            return _long_text(excludes, is_empty_too=low == "0")
    elif not _may_match(pattern, firsts):
        return regex
    most = min(map(len, excludes)) - 1
    reason = (
        f"xgrammar cannot keep {' and '.join(excludes)} out of this text; it can where nothing "
        f"matches {excludes[0][0]}, for minLength 1 alone, and up to maxLength {most}"
    )
    raise GrammarRefused(reason, keyword="pattern", where=f"{where}.pattern")


def _long_text(excludes: list[str], *, is_empty_too: bool) -> dict[str, Any]:
    """Any text without some others, which begin alike."""
    text = {"type": "any_text", "excludes": excludes}
    if is_empty_too:
        return text
    # Two ways to begin. Behind the second one, what is left of them is kept out everywhere.
    begin = excludes[0][0]
    rests = [*excludes, *(part[1:] for part in excludes)]
    ways = (
        ({"type": "regex", "pattern": f"[^{re.escape(begin)}]"}, text),
        ({"type": "const_string", "value": begin}, text | {"excludes": rests}),
    )
    elements = [{"type": "sequence", "elements": list(way)} for way in ways]
    return {"type": "or", "elements": elements}


def _may_match(pattern: str, characters: Set[str]) -> bool:
    """Whether a regex may match any of these characters; in doubt it may."""
    for escaped, is_other, members, plain in _PARTS.findall(pattern):
        if is_other or plain == "." or _may_be(escaped, characters) or plain in characters:
            return True
        for first, last in _PARTS_OF_CLASS.findall(members):
            if last:
                low, high = _character(first), _character(last)
                if not (low and high) or any(low <= each <= high for each in characters):
                    return True
            elif first in characters or (first[0] == "\\" and _may_be(first[1:], characters)):
                return True
    return False


def _may_be(escaped: str, characters: Set[str]) -> bool:
    """Whether what stands behind a backslash may match any of these characters."""
    if escaped and escaped in "dwsDWS":
        # Either way: whether the engine's classes are those of Unicode is its own affair.
        flags = (re.UNICODE, re.ASCII)
        return any(
            re.fullmatch(rf"\{escaped}", each, flag) for each in characters for flag in flags
        )
    return bool(escaped) and _character(f"\\{escaped}") in (None, *characters)


def _character(member: str) -> str | None:
    """The one character that a member of a class, or an escape, stands for; None: not known."""
    if member[0] != "\\":
        return member
    named = _CONTROLS.get(member[1:])
    return member[1:] if named is None and not member[1:].isalnum() else named
