"""The bodies of `/tokenize` and `/detokenize`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._generation_request import (
    Objects,
    RequestModel,
    TemplateSource,
    TokenIds,
)
from openinfer_frontend.protocols.openai._tools import check_tools


class TokenizeRequest(RequestModel):
    """POST /tokenize: a prompt, or messages as in chat completions."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "mm_processor_kwargs": ({},),
        "media_io_kwargs": ({},),
    }

    model: str | None = None
    """A served model name."""
    prompt: str | None = None
    """A text, instead of `messages`."""
    messages: Annotated[Objects, Field(min_length=1)] | None = None
    """A conversation, as in chat completions."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer may put BOS first."""
    add_generation_prompt: bool = True
    """As in chat completions."""
    continue_final_message: bool = False
    """As in chat completions."""
    chat_template: TemplateSource | None = None
    """As in chat completions."""
    chat_template_kwargs: dict[str, Any] | None = None
    """As in chat completions."""
    tools: Objects | None = None
    """As in chat completions."""
    return_token_strs: bool = False
    """Whether to return the text of each token."""

    @field_validator("tools")
    @classmethod
    def _known_tools(cls, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        check_tools(tools or ())
        return tools

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        return self

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        """The tools that the model would see, or None."""
        return self.tools or None

    @property
    def template_kwargs(self) -> Mapping[str, Any]:
        """Variables of the chat template."""
        return self.chat_template_kwargs or {}


class DetokenizeRequest(RequestModel):
    """POST /detokenize."""

    model: str | None = None
    """A served model name."""
    tokens: TokenIds
    """Token ids."""
