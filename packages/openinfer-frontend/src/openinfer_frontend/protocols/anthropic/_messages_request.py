"""The bodies of Anthropic's `/v1/messages` and `/v1/messages/count_tokens`."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._conversation_request import ConversationRequest, string_field
from openinfer_frontend.protocols._field_names import TOOL, FieldNames
from openinfer_frontend.protocols._generation_request import (
    MAX_STOPS,
    Objects,
    Off,
    StopStrings,
    refuse_boolean,
)
from openinfer_frontend.protocols.openai._chat_request import Effort, thinking_kwargs

BILLING_HEADER = "x-anthropic-billing-header"
"""The beginning of the billing header, a system block that Claude Code puts first and changes with
every request."""

_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "tool_choice.function": "tool_choice",
    f"{TOOL}.function": TOOL,
    f"{TOOL}.function.parameters": f"{TOOL}.input_schema",
    "messages": "messages",
    "continue_final_message": "messages",
}
"""Names of a chat's fields in this protocol, if they differ."""
_Block = Mapping[str, Any]
_SKIPPED_BLOCKS = ("redacted_thinking",)
"""Blocks that only the service that made them can read."""


class InputMessage(BaseModel):
    """One message: text, or blocks."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    role: Literal["user", "assistant", "system"]
    """`user`, `assistant` or `system`."""
    content: str | Objects
    """A text, or blocks: text, thinking, tool_use, tool_result."""


class ThinkingConfig(BaseModel):
    """Whether the model should think."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    """`disabled` asks the template not to think, the other values ask it to."""
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    """Accepted and not enforced: only `max_tokens` limits a response."""


class OutputConfig(BaseModel):
    """Effort and form of the response."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    effort: Effort | None = None
    """A hint, as `reasoning_effort` in chat completions."""
    format: dict[str, Any] | None = None
    """`{"type": "json_schema", "schema": ...}`."""


class ToolChoice(BaseModel):
    """Whether the model may, must or must not call a tool."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    type: Literal["auto", "any", "tool", "none"]
    """`auto`, `any`, `tool` or `none`."""
    name: str | None = None
    """Name of the tool, with `tool`."""
    disable_parallel_tool_use: Off = False
    """Whether only the first call is returned."""


class CountTokensRequest(ConversationRequest):
    """POST /v1/messages/count_tokens."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "mcp_servers": ([],),
        "container": (),
        "chat_template": (),
    }
    model: str
    """A served model name."""
    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True)]
    """The conversation. If it ends with an assistant message, the output continues that message."""
    system: str | Objects | None = None
    """The system prompt: a text or text blocks. Blocks with billing headers are dropped."""
    tools: Objects | None = None
    """Functions that the model may call. Tools of other types than `custom` are ignored: they run
    on other services."""
    tool_choice: ToolChoice | None = None
    """Whether the model may, must or must not call a tool."""
    thinking: ThinkingConfig | None = None
    """Whether the model should think; default: disabled, as at Anthropic."""
    output_config: OutputConfig | None = None
    """Effort and form of the response."""
    chat_template_kwargs: dict[str, Any] | None = None
    """As in chat completions."""

    def field_names(self) -> FieldNames:
        """Returns this protocol's names of a chat's fields."""
        return FieldNames(_NAMES, [place for place, _ in _functions(self.tools)])

    def chat_fields(self) -> dict[str, Any]:
        messages = _messages(self.system, self.messages)
        is_prefilled = messages[-1]["role"] == "assistant"
        choice, is_single = self._choice()
        return {
            "model": self.model,
            "messages": messages,
            "tools": _tools(self.tools) or None,
            "tool_choice": choice,
            "parallel_tool_calls": False if is_single else None,
            "continue_final_message": is_prefilled,
            "add_generation_prompt": not is_prefilled,
            "response_format": self._response_format(),
            "chat_template_kwargs": self._thinking() | (self.chat_template_kwargs or {}),
        }

    def _thinking(self) -> dict[str, Any]:
        effort = None if self.output_config is None else self.output_config.effort
        if self.thinking is None or self.thinking.type == "disabled":
            return thinking_kwargs("none")
        return thinking_kwargs("medium" if effort is None else effort)

    def _choice(self) -> tuple[object, bool]:
        choice = self.tool_choice
        if choice is None:
            return None, False
        if choice.type == "tool":
            if choice.name is None:
                raise ApiError.invalid("tool_choice.name", "must be a string")
            function = {"name": choice.name}
            return {"type": "function", "function": function}, choice.disable_parallel_tool_use
        kinds = {"auto": "auto", "any": "required", "none": "none"}
        return kinds[choice.type], choice.disable_parallel_tool_use

    def _response_format(self) -> dict[str, Any] | None:
        wanted = None if self.output_config is None else self.output_config.format
        if wanted is None:
            return None
        if wanted.get("type") != "json_schema":
            param = "output_config.format.type"
            raise ApiError(400, f"{param}: must be json_schema", param=param)
        schema = {"name": "output", "schema": wanted.get("schema")}
        return {"type": "json_schema", "json_schema": schema}


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1)]
    """Maximum number of output tokens."""
    stream: Off = False
    """Whether to respond with server-sent events."""
    stop_sequences: Annotated[StopStrings, Field(max_length=MAX_STOPS)] | None = None
    """Strings that end the output and are not part of it."""
    temperature: float | None = None
    """As in chat completions."""
    top_p: float | None = None
    """As in chat completions."""
    top_k: int | None = None
    """As in chat completions."""
    metadata: dict[str, Any] | None = None
    """`user_id` names the tenant."""
    cache_salt: str | None = None
    """As in chat completions."""
    priority: int = 0
    """As in chat completions."""
    deadline_ms: int | None = None
    """As in chat completions."""
    session_id: str | None = None
    """As in chat completions."""

    @field_validator(
        *("max_tokens", "temperature", "top_p", "top_k", "priority", "deadline_ms"), mode="before"
    )
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        return refuse_boolean(value)

    def chat_fields(self) -> dict[str, Any]:
        return super().chat_fields() | {
            "max_tokens": self.max_tokens,
            "stream": self.stream,
            "stop": self.stop_sequences or None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "user": (self.metadata or {}).get("user_id"),
            "cache_salt": self.cache_salt,
            "priority": self.priority,
            "deadline_ms": self.deadline_ms,
            "session_id": self.session_id,
        }


def _messages(
    system: str | Sequence[_Block] | None, messages: Sequence[InputMessage]
) -> list[dict[str, Any]]:
    translated = []
    parts = [{"type": "text", "text": system}] if isinstance(system, str) else system or ()
    texts = [_text_part(block, f"system[{index}]") for index, block in enumerate(parts)]
    kept = [part for part in texts if not part["text"].startswith(BILLING_HEADER)]
    if kept:
        content = "\n\n".join(part["text"] for part in kept)
        translated.append({"role": "system", "content": content})
    for index, message in enumerate(messages):
        translated += _turn(message, f"messages[{index}]")
    if not translated:
        raise ApiError(400, "messages: must not be empty", param="messages")
    return translated


def _turn(message: InputMessage, where: str) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_assistant(message.content, where)]
    results: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for index, block in enumerate(message.content):
        field = f"{where}.content[{index}]"
        if block.get("type") == "tool_result":
            results.append(_tool_result(block, field))
        else:
            rest.append(_text_part(block, field))
    if rest or not results:
        results.append({"role": message.role, "content": rest})
    return results


def _assistant(blocks: Sequence[_Block], where: str) -> dict[str, Any]:
    texts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        field = f"{where}.content[{index}]"
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(string_field(block, "thinking", field))
        elif kind == "tool_use":
            calls.append(_tool_use(block, field))
        elif kind not in _SKIPPED_BLOCKS:
            texts.append(_text_part(block, field))
    message: dict[str, Any] = {"role": "assistant", "content": texts or None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_use(block: _Block, field: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise ApiError.invalid(f"{field}.input", "must be an object")
    function = {"name": string_field(block, "name", field), "arguments": json.dumps(arguments)}
    return {"id": string_field(block, "id", field), "type": "function", "function": function}


def _tool_result(block: _Block, field: str) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list):
        content = [_text_part(part, f"{field}.content[{i}]") for i, part in enumerate(content)]
    elif not isinstance(content, str | None):
        raise ApiError.invalid(f"{field}.content", "must be a string or a list of text blocks")
    call_id = string_field(block, "tool_use_id", field)
    return {"role": "tool", "tool_call_id": call_id, "content": content or ""}


def _text_part(block: Any, field: str) -> dict[str, Any]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind != "text":
        raise ApiError.invalid(f"{field}.type", f"is {kind!r}; this model reads text")
    return {"type": "text", "text": string_field(block, "text", field)}


def _functions(tools: Sequence[_Block] | None) -> list[tuple[int, _Block]]:
    """Returns the tools that the chat has, each with its index in the body."""
    return [(i, tool) for i, tool in enumerate(tools or ()) if tool.get("type") in (None, "custom")]


def _tools(tools: Sequence[_Block] | None) -> list[dict[str, Any]]:
    translated = []
    for index, tool in _functions(tools):
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            raise ApiError.invalid(f"tools[{index}].input_schema", "must be an object")
        function = {"name": string_field(tool, "name", f"tools[{index}]"), "parameters": schema}
        function |= {key: tool[key] for key in ("description", "strict") if key in tool}
        translated.append({"type": "function", "function": function})
    return translated
