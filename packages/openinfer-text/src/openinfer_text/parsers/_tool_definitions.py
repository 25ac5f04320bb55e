"""Tool definitions of a request, checked before a template writes them.

They are not changed: the model reads their keys in the client's order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from openinfer_text.errors import InvalidChatInput


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Checks that tools can be offered to a model.

    Raises:
        InvalidChatInput: a field is wrong; names it, such as `tools[1].function.name`.
    """
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, Mapping):
            raise InvalidChatInput(where, "must be an object")
        if tool.get("type") != "function":
            raise InvalidChatInput(
                f"{where}.type", "must be function; other types of tools are not supported"
            )
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise InvalidChatInput(f"{where}.function", "must be an object")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidChatInput(f"{where}.function.name", "must be a string that is not empty")
        if not isinstance(function.get("description", ""), str | None):
            raise InvalidChatInput(f"{where}.function.description", "must be a string")
        if not isinstance(function.get("parameters", {}), Mapping | None):
            raise InvalidChatInput(
                f"{where}.function.parameters", "must be a JSON schema, an object"
            )
        if not isinstance(function.get("strict", False), bool | None):
            raise InvalidChatInput(f"{where}.function.strict", "must be true or false")
