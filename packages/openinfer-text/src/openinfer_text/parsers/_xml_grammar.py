r"""Grammars of Qwen3-Coder's calls: a parameter is a tag, its value plain text.

    parameter of strings:  <parameter=city>\n  any text without a closing tag  \n</parameter>\n
    of anything else:      <parameter=days>\n  JSON                            \n</parameter>\n

Text is not quoted, so it must not contain a tag that would end it for the parser. The parser must
also read a value back as the same value: `null` is not a string if the schema allows null.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openinfer_text.errors import StructureError
from openinfer_text.parsers._call_grammar import NO_ARGUMENTS, Tag
from openinfer_text.parsers._tool_schemas import ANNOTATIONS, branches_of, kinds_of
from openinfer_text.parsers._tool_stream import MAX_NAME
from openinfer_text.parsers._tool_values import json_of_value

FUNCTION_END, PARAMETER_END = "</function>", "</parameter>"
_VALUE_END = f"\n{PARAMETER_END}\n"
_EXCLUDES = [PARAMETER_END, FUNCTION_END]
_DEFINITIONS = ("$defs", "definitions")
_OF_PARAMETERS = frozenset(
    {"type", "properties", "required", "additionalProperties", "$schema", "$id", *_DEFINITIONS}
)
_LENGTHS = frozenset({"minLength", "maxLength"})
_OF_TEXT = frozenset({"type", "pattern", "format"}) | _LENGTHS
_NUMBERS = {
    "integer": "-?(0|[1-9][0-9]{0,17})",
    "number": r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?",
}
"""Numbers are bounded, because Python reads a huge number as infinity, which JSON cannot write."""
_DATE = (
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))"
)
_TIME = "([01][0-9]|2[0-3])(:[0-5][0-9]){2}"
_ZONE = r"(\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_ANY = r"(.|\n)*"
_NO_SYNTAX = re.compile(r"\\.|\[\^?\]?(\\.|[^\]\\])*\]", re.DOTALL)
_GROUP = re.compile(r"\(.*\)", re.DOTALL)
_FORMATS = {
    "date": _DATE,
    "time": _TIME + _ZONE,
    "date-time": f"{_DATE}T{_TIME}{_ZONE}",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "email": r"[a-z0-9_+-]{1,32}(\.[a-z0-9_+-]{1,32})?@[a-z0-9-]{1,32}(\.[a-z]{2,16}){1,2}",
}


def free_parameters(parameters: Any) -> dict[str, Any]:
    """Returns the form of parameters with any names and any text as values."""
    names = _properties(parameters or NO_ARGUMENTS)
    tags = [_text_tag(name, {"type": "any_text", "excludes": _EXCLUDES}) for name in names]
    return _row(tags, is_single=False) if tags else {"type": "const_string", "value": ""}


def constrained_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the form of the parameters of a schema, in its order.

    Raises:
        StructureError: plain text cannot be restricted by a keyword; names it.
    """
    for keyword in parameters:
        if keyword not in _OF_PARAMETERS | ANNOTATIONS:
            raise _refused(keyword, "cannot restrict calls whose parameters are tags")
    if not isinstance(parameters.get("properties"), Mapping | None):
        raise _refused("properties", "must be an object of schemas")
    properties, required = _properties(parameters), parameters.get("required")
    required = [] if required is None else required
    if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        raise _refused("required", "must be a list of names")
    for name in required:
        if name not in properties:
            raise _refused("required", f"contains {name}, which is not among the properties")
    rows = [
        _row(list(_value_tags(name, parameters)), is_single=True, is_required=name in required)
        for name in properties
    ]
    empty = [{"type": "const_string", "value": ""}]
    return {"type": "sequence", "elements": rows or empty}


def _properties(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _row(tags: Sequence[Tag], *, is_single: bool, is_required: bool = False) -> dict[str, Any]:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": "",
        "at_least_one": is_required,
        "stop_after_first": is_single,
    }


def _value_tags(name: str, parameters: Mapping[str, Any]) -> Iterator[Tag]:
    """Yields the ways to write one parameter."""
    schema = _properties(parameters)[name]
    schema = {} if schema is True else schema
    where = f"properties.{name}"
    if not isinstance(schema, Mapping):
        raise _refused(where, "must be a JSON schema, an object that some value is valid against")
    branches, kinds = branches_of(schema, parameters), kinds_of(schema, parameters)
    if not branches:
        raise _refused(where, "has too many alternatives to be restricted to")
    if kinds and "string" not in kinds:
        parts = branches if any(map(_is_number, branches)) else [schema]
        yield from (_json_tag(name, part, parameters) for part in parts)
        return
    for branch in branches:
        if not isinstance(branch.get("type", ""), str):
            raise _refused(f"{where}.type", "must be a string or a list of strings")
        if "const" in branch or "enum" in branch:
            values = [branch["const"]] if "const" in branch else branch["enum"]
            yield from _choice_tags(name, values, kinds, where)
        elif branch.get("type", "string") == "string":
            yield _text_tag(name, _text(branch, where))
        elif branch.keys() <= ANNOTATIONS | {"type"}:
            yield _json_tag(name, branch, parameters)
        else:
            # The parser would read text that looks like such a value as that value, ignoring its
            # bounds.
            raise _refused(
                where, "allows a string or a value with bounds; allow only one of the two"
            )


def _choice_tags(name: str, values: Any, kinds: frozenset[str], where: str) -> Iterator[Tag]:
    """Yields the values that the parser reads back as the same value."""
    num_found = 0
    for value in values if isinstance(values, list) else ():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        is_closed = not any(mark in text for mark in _EXCLUDES)
        if is_closed and json.loads(json_of_value(text, kinds)) == value:
            num_found += 1
            constant = {"type": "const_string", "value": text + _VALUE_END}
            yield _text_tag(name, constant) | {"end": ""}
    if not num_found:
        raise _refused(f"{where}.enum", "has no value that a tag can contain")


def _text(branch: Mapping[str, Any], where: str) -> dict[str, Any]:
    bounds = {key: value for key, value in branch.items() if key not in ANNOTATIONS}
    bounds.pop("type", None)
    for keyword in bounds.keys() - _OF_TEXT:
        raise _refused(f"{where}.{keyword}", "cannot restrict a text without quotes")
    for keyword, value in bounds.items():
        if keyword not in _LENGTHS and not isinstance(value, str):
            raise _refused(f"{where}.{keyword}", "must be a string")
        if keyword in _LENGTHS and not (type(value) is int and value >= 0):
            raise _refused(f"{where}.{keyword}", "must be a count")
    if not bounds:
        return {"type": "any_text", "excludes": _EXCLUDES}
    if {"pattern", "format"} & bounds.keys():
        if len(bounds) > 1:
            raise _refused(f"{where}.{min(bounds)}", "cannot be combined with other keywords here")
        return {"type": "regex", "pattern": _pattern(bounds, where), "excludes": _EXCLUDES}
    length = f"{bounds.get('minLength', 0)},{bounds.get('maxLength', '')}"
    return {"type": "regex", "pattern": f"(.|\\n){{{length}}}", "excludes": _EXCLUDES}


def _pattern(bounds: Mapping[str, Any], where: str) -> str:
    """Returns a regex that matches the whole text."""
    if "format" in bounds:
        form = _FORMATS.get(bounds["format"])
        if form is None:
            raise _refused(f"{where}.format", f"is supported only for {', '.join(_FORMATS)}")
        return form
    pattern = bounds["pattern"]
    inner = pattern.removeprefix("^")
    before = "" if pattern.startswith("^") else _ANY
    after = "" if inner.endswith("$") and not inner.endswith("\\$") else _ANY
    if not after:
        inner = inner[:-1]
    bare = _NO_SYNTAX.sub("", inner)
    if not _is_closed(bare):
        raise _refused(
            f"{where}.pattern",
            "is not a regular expression: it closes a bracket that it did not open",
        )
    if "^" in bare or "$" in bare or ("|" in _GROUP.sub("", bare) and not (before and after)):
        raise _refused(
            f"{where}.pattern", "has ^ or $ inside the pattern; they may stand only at its ends"
        )
    return f"{before}({inner}){after}"


def _is_closed(bare: str) -> bool:
    """Returns whether the brackets of a pattern, without escapes and classes, are balanced."""
    depth = 0
    for char in bare:
        depth += (char == "(") - (char == ")")
        if depth < 0 or char in "\\[":
            return False
    return depth == 0


def _text_tag(name: str, content: dict[str, Any]) -> Tag:
    begin = f"<parameter={_tag_name(name)}>\n"
    return {"type": "tag", "begin": begin, "content": content, "end": _VALUE_END}


def _json_tag(name: str, schema: Mapping[str, Any], parameters: Mapping[str, Any]) -> Tag:
    if _is_number(schema):
        return _text_tag(name, {"type": "regex", "pattern": _NUMBERS[schema["type"]]})
    definitions = {key: parameters[key] for key in _DEFINITIONS if key in parameters}
    return _text_tag(name, {"type": "json_schema", "json_schema": {**schema, **definitions}})


def _is_number(schema: Mapping[str, Any]) -> bool:
    """Returns whether a schema allows any number of its type."""
    return schema.keys() <= ANNOTATIONS | {"type"} and schema.get("type") in _NUMBERS


def _tag_name(name: str) -> str:
    return checked_name(name, f"parameters.properties.{name}")


def checked_name(name: str, where: str) -> str:
    """Returns a name after checking that a tag can contain it.

    Raises:
        StructureError: it cannot.
    """
    is_clean = name == name.strip() and not set(name) & set("<>\n")
    if not name or len(name) > MAX_NAME or not is_clean:
        reason = f"the name cannot stand in a tag: at most {MAX_NAME}, no < >, no line breaks"
        raise StructureError(where, reason)
    return name


def _refused(where: str, reason: str) -> StructureError:
    return StructureError(f"parameters.{where}", reason)
