"""Checks of a chat's tools and tool choice."""

from collections.abc import Mapping, Sequence
from typing import Any

import openinfer_text
from openinfer_frontend.errors import ApiError
from openinfer_text import InvalidChatInput

_CHOICES = (None, "auto", "none", "required")


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Checks that tools can be offered to a model.

    Raises:
        ApiError: 400, naming the field, such as `tools[1].function.name`.
    """
    try:
        openinfer_text.check_tools(tools)
    except InvalidChatInput as error:
        raise ApiError(400, str(error), param=error.field) from error


def check_tool_choice(choice: object) -> None:
    """Checks that a choice is `auto`, `none`, `required` or a named function.

    Raises:
        ApiError: 400.
    """
    if isinstance(choice, str | None) and choice in _CHOICES:
        return
    if not isinstance(choice, dict) or choice.get("type") != "function":
        reason = "must be auto, none, required, or an object of type function"
        raise ApiError.invalid("tool_choice", reason)
    function = choice.get("function")
    if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
        raise ApiError.invalid("tool_choice.function.name", "must be a string")
