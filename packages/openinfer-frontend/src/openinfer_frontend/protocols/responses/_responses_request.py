"""The body of OpenAI's `/v1/responses`."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._conversation_request import ConversationRequest, string_field
from openinfer_frontend.protocols._field_names import TOOL, FieldNames
from openinfer_frontend.protocols._generation_request import (
    LogprobsMode,
    Objects,
    Off,
    Strings,
    refuse_boolean,
)
from openinfer_frontend.protocols.openai._chat_request import Effort

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that is honoured; the other values ask for unsupported features."""

_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tool_choice.function": "tool_choice",
    f"{TOOL}.function": TOOL,
}
"""Names of a chat's fields in this protocol, if they differ."""
_ROLES = ("user", "assistant", "system", "developer")
_Item = Mapping[str, Any]
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class ReasoningConfig(BaseModel):
    """How much the model should think."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    effort: Effort | None = None
    """A hint, as `reasoning_effort` in chat completions. Summaries are not made."""


class TextConfig(BaseModel):
    """The form of the response's text."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    format: dict[str, Any] | None = None
    """`text`, `json_object`, or `json_schema` with `name`, `schema` and `strict`."""


class ResponsesRequest(ConversationRequest):
    """POST /v1/responses. Nothing is stored: every request contains the whole conversation."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "background": (False,),
        "truncation": ("disabled",),
        "modalities": (["text"],),
        "audio": (),
        "moderation": (),
        "chat_template": (),
    }
    model: str | None = None
    """A served model name; default: the first one."""
    input: str | Objects
    """A text, or items: messages, function calls and their outputs, reasoning."""
    instructions: str | None = None
    """The system prompt."""
    stream: Off = False
    """Whether to respond with server-sent events."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of output tokens."""
    temperature: float | None = None
    """As in chat completions."""
    top_p: float | None = None
    """As in chat completions."""
    top_k: int | None = None
    """As in chat completions."""
    min_p: float | None = None
    """As in chat completions."""
    seed: int | None = None
    """As in chat completions."""
    ignore_eos: Off = False
    """As in chat completions."""
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    """Returns logprobs, with this many alternatives to each token."""
    logprobs_mode: LogprobsMode = "raw"
    """As in chat completions."""
    include: Strings | None = None
    """`message.output_text.logprobs` asks for logprobs; other values are ignored."""
    tools: Objects | None = None
    """Functions that the model may call. Tools of other types than `function` are ignored: they run
    on other services."""
    tool_choice: Any = None
    """`auto`, `none`, `required`, a function, or `allowed_tools`."""
    parallel_tool_calls: bool | None = None
    """If false, only the first call is returned."""
    reasoning: ReasoningConfig | None = None
    """How much the model should think."""
    text: TextConfig | None = None
    """The form of the response."""
    metadata: dict[str, Any] | None = None
    """Repeated in the response."""
    store: bool | None = None
    """Ignored: nothing is stored, and the response says false."""
    user: str | None = None
    """As in chat completions."""
    prompt_cache_key: str | None = None
    """Names the session, unless `session_id` does."""
    session_id: str | None = None
    """As in chat completions."""
    cache_salt: str | None = None
    """As in chat completions."""
    priority: int = 0
    """As in chat completions."""
    deadline_ms: int | None = None
    """As in chat completions."""
    chat_template_kwargs: dict[str, Any] | None = None
    """As in chat completions."""

    @field_validator(
        *("max_output_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "top_logprobs"),
        *("priority", "deadline_ms"),
        mode="before",
    )
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        return refuse_boolean(value)

    @field_validator("metadata", "tools", "tool_choice", "text", mode="before")
    @classmethod
    def _can_be_encoded(cls, value: Any) -> Any:
        try:
            json.dumps(value, allow_nan=False)
        except (ValueError, RecursionError):
            raise ValueError("must not contain NaN or infinite numbers") from None
        return value

    @field_validator("user", "prompt_cache_key", mode="before")
    @classmethod
    def _text_or_none(cls, value: Any) -> str | None:
        return value if isinstance(value, str) and len(value) <= 512 else None

    def chat_fields(self) -> dict[str, Any]:
        choice = self.tool_choice
        if isinstance(choice, dict):
            choice = _choice(choice)
        tools = [_tool(tool, f"tools[{place}]") for place, tool in self._functions()]
        has_logprobs = LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        return {
            "model": self.model,
            "messages": _messages(self.instructions, self.input),
            "stream": self.stream,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "logprobs": has_logprobs,
            "top_logprobs": self.top_logprobs,
            "logprobs_mode": self.logprobs_mode,
            "tools": tools or None,
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "response_format": self._response_format(),
            "user": self.user,
            "session_id": self.session_id or self.prompt_cache_key,
            "cache_salt": self.cache_salt,
            "priority": self.priority,
            "deadline_ms": self.deadline_ms,
            "chat_template_kwargs": self.chat_template_kwargs,
        }

    def field_names(self) -> FieldNames:
        """Returns this protocol's names of a chat's fields."""
        return FieldNames(_NAMES, [place for place, _ in self._functions()])

    def _functions(self) -> list[tuple[int, _Item]]:
        """Returns the tools that the chat has, each with its index in the body."""
        names = _allowed_names(self.tool_choice)
        return [
            (place, tool)
            for place, tool in enumerate(self.tools or ())
            if tool.get("type") == "function"
            and (names is None or not isinstance(tool.get("name"), str) or tool["name"] in names)
        ]

    def _response_format(self) -> dict[str, Any] | None:
        wanted = None if self.text is None else self.text.format
        if wanted is None or wanted.get("type") != "json_schema":
            return wanted
        schema = {key: wanted[key] for key in ("name", "schema", "strict") if key in wanted}
        return {"type": "json_schema", "json_schema": schema}


class _ConversationBuilder:
    """Builds messages from items; consecutive items of the model become one message.

    Texts that belong together are joined once, in `messages`: the time is linear in the items.
    """

    def __init__(self) -> None:
        self._system: list[str] = []
        """System texts at the start. Templates want one system message, at the beginning."""
        self._messages: list[dict[str, Any]] = []
        """All other messages. Reasoning is a list of texts until `messages`."""

    @property
    def has_messages(self) -> bool:
        """Whether there are other than system messages."""
        return bool(self._messages)

    def messages(self) -> list[dict[str, Any]]:
        """Returns the messages, after all items were added."""
        for message in self._messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "\n".join(message["reasoning_content"])
        system = [{"role": "system", "content": "\n\n".join(self._system)}] if self._system else []
        return [*system, *self._messages]

    def add(self, role: str, content: str | list[dict[str, Any]], **fields: str) -> None:
        """Adds a message; `fields` are further fields of it."""
        last = self._messages[-1] if self._messages else {}
        if role == "system" and not self.has_messages:
            self._system.append(_plain(content))
        elif role == "assistant" and last.get("role") == role and last["content"] is None:
            last["content"] = content
        else:
            self._messages.append({"role": role, **fields, "content": content})

    def add_reasoning(self, thoughts: str) -> None:
        """Adds reasoning, which begins the assistant's next message."""
        last = self._messages[-1] if self._messages else {}
        if set(last) == {"role", "content", "reasoning_content"} and last["content"] is None:
            last["reasoning_content"].append(thoughts)
            return
        message = {"role": "assistant", "content": None, "reasoning_content": [thoughts]}
        self._messages.append(message)

    def add_call(self, call: dict[str, Any]) -> None:
        """Adds a call to the assistant's message, or begins one."""
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant", "content": None})
        self._messages[-1].setdefault("tool_calls", []).append(call)


def _messages(instructions: str | None, given: str | Sequence[_Item]) -> list[dict[str, Any]]:
    conversation = _ConversationBuilder()
    if instructions:
        conversation.add("system", instructions)
    if isinstance(given, str):
        conversation.add("user", given)
        return conversation.messages()
    for index, item in enumerate(given):
        _add_item(conversation, item, f"input[{index}]")
    messages = conversation.messages()
    if not messages:
        raise ApiError.invalid("input", "must not be empty")
    return messages


def _add_item(conversation: _ConversationBuilder, item: _Item, field: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = string_field(item, "role", field)
        if role not in _ROLES:
            raise ApiError.invalid(
                f"{field}.role", f"is {role[:100]!r}; known are {', '.join(_ROLES)}"
            )
        # A developer message in the middle keeps its role; at the start it is part of the system
        # prompt.
        role = "system" if role == "developer" and not conversation.has_messages else role
        conversation.add(role, _content(item.get("content"), f"{field}.content"))
    elif kind == "function_call":
        name = string_field(item, "name", field)
        function = {"name": name, "arguments": string_field(item, "arguments", field)}
        call_id = string_field(item, "call_id", field)
        conversation.add_call({"id": call_id, "type": "function", "function": function})
    elif kind == "function_call_output":
        output = _content(item.get("output"), f"{field}.output")
        call_id = string_field(item, "call_id", field)
        conversation.add("tool", output, tool_call_id=call_id)
    elif kind == "reasoning":
        thoughts = _reasoning(item, field)
        if thoughts:
            conversation.add_reasoning(thoughts)
    else:
        known = "message, function_call, function_call_output, reasoning"
        raise ApiError.invalid(
            f"{field}.type", f"is {str(kind)[:100]!r}; it must be one of {known}"
        )


def _reasoning(item: _Item, field: str) -> str:
    """Returns the text of a reasoning item; reasoning that another service encrypted has none."""
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        raise ApiError.invalid(f"{field}.content", "must be a list of parts")
    texts = (_part(part, f"{field}.content[{index}]") for index, part in enumerate(parts))
    return "\n".join(part["text"] for part in texts)


def _content(content: Any, field: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError.invalid(field, "must be a string or a list of parts")
    return [_part(part, f"{field}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, field: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        return {"type": "text", "text": string_field(part, "refusal", field)}
    if kind not in _TEXT_PARTS:
        raise ApiError.invalid(f"{field}.type", f"is {str(kind)[:100]!r}; this model reads text")
    return {"type": "text", "text": string_field(part, "text", field)}


def _plain(content: str | Sequence[_Item]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _tool(tool: _Item, field: str) -> dict[str, Any]:
    function = {"name": string_field(tool, "name", field)}
    keys = ("description", "parameters", "strict")
    function |= {key: tool[key] for key in keys if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _allowed_names(choice: object) -> frozenset[str] | None:
    """Returns the names of the tools that a choice allows, or None for all."""
    allowed = choice.get("tools") if isinstance(choice, dict) else None
    if not isinstance(allowed, list):
        return None
    return frozenset(str(tool.get("name")) for tool in allowed if isinstance(tool, dict))


def _choice(choice: _Item) -> object:
    """Returns the chat's tool choice for a choice that is an object."""
    kind = choice.get("type")
    if kind == "function":
        function = {"name": string_field(choice, "name", "tool_choice")}
        return {"type": "function", "function": function}
    if kind != "allowed_tools":
        raise ApiError.invalid("tool_choice.type", "must be function or allowed_tools")
    mode = choice.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise ApiError.invalid("tool_choice.mode", "must be auto or required")
    if not isinstance(choice.get("tools"), list):
        raise ApiError.invalid("tool_choice.tools", "must be a list")
    return mode
