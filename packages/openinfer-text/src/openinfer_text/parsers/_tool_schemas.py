"""Parameter types and names of a request's tools, read from their JSON schemas."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$comment", "x-guidance"}
)
"""Keywords that do not restrict a value."""
_MAX_BRANCHES = 256
"""Maximum number of schemas read for one parameter, because schemas may refer to each other."""


class ToolSchemas:
    """Parameters by tool. Schemas of an unusual form are ignored."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = (_mapping(tool.get("function")) for tool in tools)
        self._parameters = {
            str(function.get("name")): _mapping(function.get("parameters"))
            for function in functions
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools, in the request's order."""
        return tuple(self._parameters)

    def accepts(self, name: str, keys: set[str]) -> bool:
        """Returns whether a call of the tool with exactly these parameters follows its schema."""
        parameters = self._parameters[name]
        required = parameters.get("required")
        names = required if isinstance(required, list) else ()
        wanted = {name for name in names if isinstance(name, str)}
        return wanted <= keys <= _mapping(parameters.get("properties")).keys()

    def kinds(self, name: str, parameter: str) -> frozenset[str]:
        """Returns the JSON types that a parameter may have; empty if none is known."""
        parameters = _mapping(self._parameters.get(name))
        return kinds_of(_mapping(parameters.get("properties")).get(parameter), parameters)


def kinds_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Returns the JSON types that the schema of a parameter allows; empty if none is known.

    Args:
        schema: schema of the parameter.
        root: schema of all parameters, which `$ref` refers to.
    """
    return frozenset(kind for branch in branches_of(schema, root) for kind in _kinds(branch))


def object_schema(parameters: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the schema of a call's arguments, None if it allows values other than objects."""
    kinds = [set(_kinds(branch)) for branch in branches_of(parameters, parameters)]
    if kinds and all(found == {"object"} for found in kinds):
        return parameters
    says_nothing = not parameters.keys() & {"type", "const", "enum", "$ref", "anyOf", "oneOf"}
    return {**parameters, "type": "object"} if kinds == [set()] and says_nothing else None


def branches_of(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns alternatives, one of which a value must follow, with `anyOf` and `$ref` expanded.

    The list is empty if there are too many. No alternative has a list of types, `anyOf`, `oneOf` or
    a `$ref` that can be resolved; the keywords beside those are part of every alternative.
    """
    branches: list[Mapping[str, Any]] = []
    waiting, followed = [_mapping(schema)], set()
    for _ in range(_MAX_BRANCHES):
        if not waiting:
            return branches
        schema = waiting.pop()
        if isinstance(reference := schema.get("$ref"), str):
            if reference in followed:
                continue
            followed.add(reference)
        key, choices = _choices(schema, root)
        rest = {name: value for name, value in schema.items() if name != key}
        if key is None:
            branches.append(schema)
        waiting += [_both(rest, choice) for choice in reversed(choices)]
    return []


def _choices(
    schema: Mapping[str, Any], root: Mapping[str, Any]
) -> tuple[str | None, list[Mapping[str, Any]]]:
    """Returns the keyword that stands for other schemas, and those schemas."""
    if (target := _referred(schema.get("$ref"), root)) is not None:
        return "$ref", [target]
    if isinstance(every := schema.get("allOf"), list) and len(every) == 1:
        return "allOf", [_mapping(every[0])]
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            return key, [_mapping(choice) for choice in choices]
    if isinstance(kinds := schema.get("type"), list):
        return "type", [{"type": kind} for kind in kinds if isinstance(kind, str)]
    return None, []


def _both(schema: Mapping[str, Any], choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a choice merged with the keywords beside it; both as `allOf` if they contradict."""
    shared = (schema.keys() & choice.keys()) - ANNOTATIONS
    both = {**schema, **choice}
    if any(schema[key] != choice[key] for key in shared):
        both["allOf"] = [dict(schema), dict(choice)]
    return both


def _referred(reference: Any, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        found = _mapping(found).get(part.replace("~1", "/").replace("~0", "~"))
    return found if isinstance(found, Mapping) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _kinds(branch: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(declared := branch.get("type"), str):
        yield declared
        return
    values = [branch["const"]] if "const" in branch else branch.get("enum")
    if isinstance(values, list):
        yield from (_KINDS[type(value)] for value in values if type(value) in _KINDS)
