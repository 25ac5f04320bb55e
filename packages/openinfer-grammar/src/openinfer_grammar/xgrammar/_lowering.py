"""JSON schemas and structural tags, lowered to forms that xgrammar honours.

xgrammar honours fewer keywords than llguidance. It silently ignores the others, and it ignores some
keywords when they stand beside certain others. This module lists the keywords that it honours and
refuses the others by name.
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
"""Keywords that do not restrict an output."""
_WHOLE = ("$ref", "anyOf", "const", "enum")
"""Keywords that make xgrammar ignore all other keywords of the schema."""
_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are not schemas."""
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
"""Keywords that are honoured only in a schema of the given type."""
_ALONE = {
    "pattern": ("minLength", "maxLength"),
    "minimum": ("exclusiveMinimum",),
    "maximum": ("exclusiveMaximum",),
}
"""Keywords that are ignored beside the given others."""
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
"""Characters that a JSON string contains unescaped, as ranges. A negated class would allow bytes
that are not characters."""
_AROUND = re.compile(r"\(\?(?!:)|\\[bB]")
_BOUNDED = re.compile(r"\(\.\|\\n\)\{(\d+),(\d*)\}")
_PARTS = re.compile(r"\\(.)|\[(\^?)((?:\\.|[^\]])*)\]|(.)", re.DOTALL)
"""Parts of a regex: an escape, a class, a character."""
_PARTS_OF_CLASS = re.compile(r"(\\.|.)(?:-(\\.|.))?", re.DOTALL)
"""A member of a class, or the first and last one of a range."""
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}

_Ebnf = Callable[[dict[str, Any]], str]


def honoured_schema(schema: Any) -> dict[str, Any]:
    """Returns the schema in a form that xgrammar honours completely.

    Raises:
        GrammarRefused: a keyword is not honoured; names the first one.
    """
    if schema is False:
        raise GrammarRefused("nothing is valid against false")
    schema = {} if schema is True else schema
    found = refused_keyword(schema, _is_honoured)
    if found is not None:
        keyword, path = found
        reason = "xgrammar does not honour it"
        raise GrammarRefused(reason, keyword=keyword, where=".".join(path))
    held: dict[str, Any] = _rewritten(schema)
    return held


def _is_honoured(keyword: str, schema: Mapping[str, Any]) -> bool:
    if keyword in _FREE:
        return True
    whole = next((key for key in _WHOLE if key in schema), None)
    if keyword == whole:
        return keyword not in ("const", "enum") or _is_of_type(schema)
    if whole is not None:
        return keyword == "type" and whole in ("const", "enum")
    if any(other in schema for other in _ALONE.get(keyword, ())):
        return False
    if keyword == "pattern" and not is_honoured_regex(schema[keyword]):
        return False
    if keyword in _OF_TYPE:
        return bool(schema.get("type") == _OF_TYPE[keyword])
    return keyword in ("type", "properties", "additionalProperties", "items", "prefixItems")


def is_honoured_regex(pattern: Any) -> bool:
    """Returns whether xgrammar honours a regex: it ignores anchors and look-around."""
    return isinstance(pattern, str) and _AROUND.search(pattern) is None


def _is_of_type(schema: Mapping[str, Any]) -> bool:
    """Returns whether the values of a schema are of its type, if it has one."""
    kinds = schema.get("type", [*_KINDS])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    values = [schema["const"]] if "const" in schema else schema["enum"]
    return isinstance(values, list) and all(
        any(_KINDS[kind](value) for kind in kinds if kind in _KINDS) for value in values
    )


def _rewritten(part: Any) -> Any:
    """Returns the schema, rewritten where this version of the library misreads it."""
    if isinstance(part, list):
        return [_rewritten(item) for item in part]
    if not isinstance(part, dict):
        return part
    plain: dict[str, Any] = {}
    for keyword, value in part.items():
        if keyword in _BY_NAME and isinstance(value, dict):
            # The keys are property names here, even if they look like keywords.
            plain[keyword] = {name: _rewritten(schema) for name, schema in value.items()}
        else:
            plain[keyword] = value if keyword in _DATA else _rewritten(value)
    kind = part.get("type")
    if kind == "string" and ("minLength" in part or "maxLength" in part):
        # The library allows control characters, which are invalid JSON, in strings of bounded
        # length.
        low, high = plain.pop("minLength", 0), plain.pop("maxLength", "")
        plain["pattern"] = f"^[{_CHARACTERS}]{{{low},{high}}}$"
    elif kind == "array" and "prefixItems" not in part and {"minItems", "maxItems"} & part.keys():
        plain.setdefault("items", {})  # without `items`, an array with bounds is always empty
    elif kind == "object" and isinstance(part.get("required"), list):
        _name_required(plain)
    return plain


def _name_required(schema: dict[str, Any]) -> None:
    """Adds required names to the properties: the library ignores other required names."""
    others = schema.get("additionalProperties", True)
    properties = dict(schema.get("properties") or {})
    for name in schema["required"]:
        if name not in properties and others is False:
            reason = f"{name} is required, but not a property"
            raise GrammarRefused(reason, keyword="required", where="required")
        properties.setdefault(name, others)
    schema["properties"] = properties


def honoured_tag(tag: Mapping[str, Any], ebnf: _Ebnf) -> str:
    """Returns a structural tag in the form that this version of the library reads.

    Args:
        tag: a tag that `lower_structural_tag` accepts.
        ebnf: returns a schema as a grammar.

    Raises:
        GrammarRefused: a part is not honoured; names it.
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
    return json.dumps({"type": "structural_tag", "format": _honoured_form(form, ebnf, "format")})


def _honoured_form(form: Any, ebnf: _Ebnf, where: str) -> Any:
    if isinstance(form, list):
        return [_honoured_form(item, ebnf, f"{where}.{i}") for i, item in enumerate(form)]
    if not isinstance(form, dict):
        return form
    if form.get("type") == "json_schema":
        return {"type": "grammar", "grammar": ebnf(honoured_schema(form.get("json_schema", True)))}
    if form.get("type") == "regex" and form.get("excludes"):
        return _without_excluded(form["pattern"], form["excludes"], where)
    return {key: _honoured_form(value, ebnf, f"{where}.{key}") for key, value in form.items()}


def _without_excluded(pattern: str, excludes: list[str], where: str) -> dict[str, Any]:
    """Returns a form for a regex whose matches must not contain the excluded texts.

    The library has no such form, so only some cases can be expressed.
    """
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
        f"xgrammar cannot exclude {' and '.join(excludes)} from this text; it can if nothing "
        f"matches {excludes[0][0]}, for minLength 1 alone, and up to maxLength {most}"
    )
    raise GrammarRefused(reason, keyword="pattern", where=f"{where}.pattern")


def _long_text(excludes: list[str], *, is_empty_too: bool) -> dict[str, Any]:
    """Returns a form for any text without the excluded texts, which share a first character."""
    text = {"type": "any_text", "excludes": excludes}
    if is_empty_too:
        return text
    # A text begins either with another character, or with the shared first character. In the second
    # case, the part after it must also exclude the rest of each excluded text.
    begin = excludes[0][0]
    rests = [*excludes, *(part[1:] for part in excludes)]
    ways = (
        ({"type": "regex", "pattern": f"[^{re.escape(begin)}]"}, text),
        ({"type": "const_string", "value": begin}, text | {"excludes": rests}),
    )
    elements = [{"type": "sequence", "elements": list(way)} for way in ways]
    return {"type": "or", "elements": elements}


def _may_match(pattern: str, characters: Set[str]) -> bool:
    """Returns whether a regex may match any of these characters; True in doubt."""
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
    """Returns whether an escape may match any of these characters."""
    if escaped and escaped in "dwsDWS":
        # Both the Unicode and the ASCII meaning count, because the library's classes may have
        # either.
        flags = (re.UNICODE, re.ASCII)
        return any(
            re.fullmatch(rf"\{escaped}", each, flag) for each in characters for flag in flags
        )
    return bool(escaped) and _character(f"\\{escaped}") in (None, *characters)


def _character(member: str) -> str | None:
    """Returns the character of a class member or an escape, None if it is not known."""
    if member[0] != "\\":
        return member
    named = _CONTROLS.get(member[1:])
    return member[1:] if named is None and not member[1:].isalnum() else named
