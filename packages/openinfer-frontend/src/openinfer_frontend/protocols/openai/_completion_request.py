"""The body of `/v1/completions`."""

from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._generation_request import (
    GenerationRequest,
    Off,
    On,
    TokenIds,
    refuse_boolean,
    wrong_entry,
)

TokenIdLists = Annotated[list[TokenIds], Field(fail_fast=True)]
Texts = Annotated[list[Annotated[str, Field(strict=True)]], Field(fail_fast=True)]
_PROMPT_FORMS = "must be a string, a list of strings, a list of token ids or a list of such lists"


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = GenerationRequest.UNSUPPORTED | {
        "suffix": ("",),
        "prompt_embeds": (),
    }

    prompt: Annotated[str | TokenIds | Texts | TokenIdLists, Field(union_mode="left_to_right")]
    """A text, texts, token ids, or lists of token ids."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of output tokens; 0 only echoes or scores the prompt."""
    echo: Off = False
    """Whether the response begins with the prompt, and with its logprobs if they are asked for."""
    logprobs: Annotated[int, Field(ge=0)] | None = None
    """Returns logprobs, with this many alternatives to each token."""
    best_of: int | None = None
    """Must equal `n`."""
    add_special_tokens: On = True
    """Whether the tokenizer may put its BOS before a text."""

    @field_validator("logprobs", "best_of", mode="before")
    @classmethod
    def _no_boolean_count(cls, value: Any) -> Any:
        return refuse_boolean(value)

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _one_message_for_all_forms(cls, prompt: Any, check: ValidatorFunctionWrapHandler) -> Any:
        if prompt == []:
            raise ValueError("must not be empty")
        try:
            return check(prompt)
        except ValidationError as error:
            wrong = wrong_entry("prompt", error, f"is of the wrong type; prompt {_PROMPT_FORMS}")
            raise wrong or ValueError(_PROMPT_FORMS) from None

    @model_validator(mode="after")
    def _no_tokens_of_nothing(self) -> Self:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            message = "max_tokens must be at least 1, unless echo or prompt_logprobs is asked for"
            raise ApiError(400, message, param="max_tokens")
        return self

    @model_validator(mode="after")
    def _best_of_is_n(self) -> Self:
        if self.best_of is not None and self.best_of != self.n:
            raise ApiError(400, "best_of is only supported when it equals n", param="best_of")
        return self

    @model_validator(mode="after")
    def _echoed_scores_are_raw(self) -> Self:
        if self.echo and self.logprobs_mode != "raw":
            message = "logprobs_mode must be raw with echo: nothing is drawn from a prompt's logits"
            raise ApiError(400, message, param="logprobs_mode")
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts as a list."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and isinstance(prompt[0], int):
            return [prompt]
        return cast("list[str] | list[list[int]]", prompt)

    @property
    def num_top_logprobs(self) -> int | None:
        """Alternatives to each output token; None for no logprobs at all."""
        return self.logprobs

    @property
    def num_top_prompt_logprobs(self) -> int | None:
        """Alternatives to each prompt token; None for no prompt logprobs."""
        echoed = self.logprobs if self.echo else None
        wishes = [wish for wish in (echoed, self.prompt_logprobs) if wish is not None]
        return max(wishes, default=None)
