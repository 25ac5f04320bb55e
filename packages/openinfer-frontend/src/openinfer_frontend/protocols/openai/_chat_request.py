"""The body of `/v1/chat/completions`, which is also the form of every conversation.

Other protocols are translated into it, so that a conversation is checked, rendered and lowered in
one place.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._generation_request import (
    GenerationRequest,
    Objects,
    Off,
    On,
    TemplateSource,
    refuse_boolean,
)
from openinfer_frontend.protocols.openai._tools import check_tool_choice, check_tools

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    TOP_LOGPROBS_PARAM: ClassVar[str] = "top_logprobs"
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = GenerationRequest.UNSUPPORTED | {
        "functions": (),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "web_search_options": (),
        "documents": ([],),
        "mm_processor_kwargs": ({},),
        "media_io_kwargs": ({},),
        "echo": (False,),
    }

    messages: Annotated[Objects, Field(min_length=1)]
    """The conversation: roles system, developer, user, assistant and tool; content is a text or
    parts."""
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """Preferred over `max_tokens`."""
    logprobs: Off = False
    """Whether to return the logprob of each token."""
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    """Alternatives to each token; only with `logprobs`."""
    add_generation_prompt: On = True
    """Whether the prompt opens the assistant's turn."""
    continue_final_message: Off = False
    """Whether the output continues the last message."""
    add_special_tokens: Off = False
    """Whether to put BOS before the rendered prompt."""
    chat_template: TemplateSource | None = None
    """A Jinja template instead of the model's own, if the operator allows it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the chat template, such as `enable_thinking`."""
    reasoning_effort: Effort | None = None
    """A hint: `none` asks the template not to think, other values are passed to it."""
    include_reasoning: On = True
    """Whether to return reasoning."""
    tools: Objects | None = None
    """Functions that the model may call."""
    tool_choice: Any = None
    """`auto`, `none`, `required`, or a named function."""
    parallel_tool_calls: bool | None = None
    """If false, only the first call is returned."""

    @field_validator("top_logprobs", "max_completion_tokens", mode="before")
    @classmethod
    def _no_boolean_count(cls, value: Any) -> Any:
        return refuse_boolean(value)

    @field_validator("tools")
    @classmethod
    def _known_tools(cls, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        check_tools(tools or ())
        return tools

    @field_validator("tool_choice")
    @classmethod
    def _known_choice(cls, choice: Any) -> Any:
        check_tool_choice(choice)
        return choice

    @model_validator(mode="after")
    def _a_call_needs_tools(self) -> Self:
        if self.tool_choice not in (None, "auto", "none") and not self.tools:
            message = "tool_choice demands a call, but tools is empty"
            raise ApiError(400, message, param="tool_choice")
        return self

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            message = "top_logprobs is only allowed when logprobs is true"
            raise ApiError(400, message, param="top_logprobs")
        return self

    @property
    def wanted_max_tokens(self) -> int | None:
        """The maximum number of output tokens that the client asked for, or None."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """Alternatives to each token; None for no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        """The tools that the model sees and whose calls are parsed, or None."""
        return None if self.tool_choice == "none" else self.tools or None

    @property
    def template_kwargs(self) -> Mapping[str, Any]:
        """Variables of the chat template; the client's own override those of the effort."""
        return thinking_kwargs(self.reasoning_effort) | (self.chat_template_kwargs or {})


def thinking_kwargs(effort: Effort | None) -> dict[str, Any]:
    """Returns an effort as variables of published templates; other templates ignore them.

    Args:
        effort: `none` switches reasoning off where possible; None leaves it to the template.
    """
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False, "thinking": False}
    return {"enable_thinking": True, "thinking": True, "reasoning_effort": effort}
