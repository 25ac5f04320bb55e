"""What a chat request says about tools, checked by name.

Tools reach the chat template as they came: their keys and the order of these are what the model
reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from openinfer_frontend.errors import ApiError

_CHOICES = (None, "auto", "none", "required")


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Looks for tools that cannot be offered to a model.

    Raises:
        ApiError: 400, naming the field, such as `tools[1].function.name`.
    """
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.get("type") != "function":
            raise _wrong(f"{where}.type", "must be function, the only kind of tool there is here")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise _wrong(f"{where}.function", "must be an object")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise _wrong(f"{where}.function.name", "must be a string that is not empty")
        if not isinstance(function.get("description", ""), str | None):
            raise _wrong(f"{where}.function.description", "must be a string")
        if not isinstance(function.get("parameters", {}), dict | None):
            raise _wrong(f"{where}.function.parameters", "must be a JSON schema, an object")
        if not isinstance(function.get("strict", False), bool | None):
            raise _wrong(f"{where}.function.strict", "must be true or false")


def check_tool_choice(choice: object) -> None:
    """Looks for a choice that is none of `auto`, `none`, `required` and a named function.

    Raises:
        ApiError: 400.
    """
    if isinstance(choice, str | None) and choice in _CHOICES:
        return
    if not isinstance(choice, dict) or choice.get("type") != "function":
        reason = "must be auto, none, required, or an object of type function"
        raise _wrong("tool_choice", reason)
    function = choice.get("function")
    if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
        raise _wrong("tool_choice.function.name", "must be a string")


def _wrong(param: str, reason: str) -> ApiError:
    return ApiError(400, f"{param}: {reason}", param=param)
