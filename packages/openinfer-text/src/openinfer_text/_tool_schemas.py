"""What a request's tools say about their parameters, as far as it can be read."""

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


class ToolSchemas:
    """Parameters by tool; a schema of any other shape than usual says nothing."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = (_mapping(tool.get("function")) for tool in tools)
        self._parameters = {
            str(function.get("name")): _mapping(function.get("parameters"))
            for function in functions
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tools, in the request's order."""
        return tuple(self._parameters)

    def accepts(self, name: str, keys: set[str]) -> bool:
        """Whether a call of the tool with exactly these parameters follows its schema."""
        parameters = self._parameters[name]
        required = parameters.get("required")
        wanted = set(required) if isinstance(required, list) else set()
        return wanted <= keys <= _mapping(parameters.get("properties")).keys()

    def kinds(self, name: str, parameter: str) -> frozenset[str]:
        """JSON types that a parameter may have; none where nothing is known."""
        properties = _mapping(_mapping(self._parameters.get(name)).get("properties"))
        return frozenset(_kinds(properties.get(parameter)))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _kinds(schema: Any) -> Iterator[str]:
    schema = _mapping(schema)
    declared = schema.get("type")
    if isinstance(declared, str):
        yield declared
    elif isinstance(declared, list):
        yield from (kind for kind in declared if isinstance(kind, str))
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else ():
            yield from _kinds(choice)
    if declared is None and isinstance(values := schema.get("enum"), list):
        yield from (_KINDS[type(value)] for value in values if type(value) in _KINDS)
