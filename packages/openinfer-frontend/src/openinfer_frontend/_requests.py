"""Request bodies, validated at the edge.

Unknown fields are ignored: SDKs and proxies add their own. Fields that are known, change the
output, and are not supported are refused by name (`RequestModel.refuse_unsupported`).
"""

from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from openinfer_frontend._tools import check_tool_choice, check_tools
from openinfer_frontend.errors import ApiError

TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
TokenIdLists = Annotated[list[TokenIds], Field(fail_fast=True)]
StopString = Annotated[str, Field(max_length=1024)]
Texts = Annotated[list[Annotated[str, Field(strict=True)]], Field(fail_fast=True)]
_NUMBERS = (
    *("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "priority"),
    "prompt_logprobs",
)
_MAX_USER_CHARS = 512
_INSTEAD = {
    "functions": "tools",
    "function_call": "tool_choice",
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "structural_tag": "structured_outputs.structural_tag",
}
"""What says today what an older field said."""
_MAX_STOPS = 64
_STOP_FORMS = f"must be a string or at most {_MAX_STOPS} strings of at most 1024 characters each"
_PROMPT_FORMS = "must be a string, a list of strings, a list of token ids or a list of such lists"


class RequestModel(BaseModel):
    """A body: known fields with their bounds, everything else kept aside in `model_extra`."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Known fields that cannot be honoured, with the values that ask for nothing."""

    def refuse_unsupported(self) -> None:
        """Looks for known fields that would have to be dropped.

        Raises:
            ApiError: 400, naming the first.
        """
        for name, value in (self.model_extra or {}).items():
            harmless = self.UNSUPPORTED.get(name)
            if harmless is not None and value is not None and value not in harmless:
                instead = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
                message = f"{name} is not supported by this server{instead}"
                raise ApiError(400, message, param=name)


class StreamOptions(BaseModel):
    """What a stream carries besides the output."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(RequestModel):
    """The fields that completions and chat completions share."""

    TOP_LOGPROBS_PARAM: ClassVar[str] = "logprobs"
    """Which field says how many alternatives are wanted."""
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "use_beam_search": (False,),
        "length_penalty": (1, 1.0),
        "early_stopping": (False,),
        "truncate_prompt_tokens": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "structural_tag": (),
        "stop_regex": ([],),
        "logits_processors": ([],),
        "repetition_detection": (),
        "thinking_token_budget": (),
        "kv_transfer_params": (),
        "vllm_xargs": ({},),
        "stream_interval": (1,),
    }

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] = 1
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """0 and -1 switch it off."""
    min_p: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=128)]
        | None
    ) = None
    stop: StopString | list[StopString] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    user: str | None = None
    """A hint for sharing between tenants; what is no short text is passed over, never refused."""
    session_id: Annotated[str, Field(max_length=512)] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0)] | None = None
    logprob_token_ids: Annotated[TokenIds, Field(max_length=128)] | None = None

    @field_validator(*_NUMBERS, mode="before")
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        return _refuse_boolean(value)

    @field_validator("user", mode="before")
    @classmethod
    def _short_text_or_none(cls, value: Any) -> str | None:
        return value if isinstance(value, str) and len(value) <= _MAX_USER_CHARS else None

    @field_validator("stop", mode="wrap")
    @classmethod
    def _one_message_for_all_stops(cls, stop: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            stop = check(stop)
        except ValidationError:
            raise ValueError(_STOP_FORMS) from None
        if isinstance(stop, list) and len(stop) > _MAX_STOPS:
            raise ValueError(f"{_STOP_FORMS}; these are {len(stop)}")
        if stop == "" or (isinstance(stop, list) and "" in stop):
            raise ValueError("a stop string must not be empty")
        return stop

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            message = "stream_options is only allowed when stream is true"
            raise ApiError(400, message, param="stream_options")
        return self

    @model_validator(mode="after")
    def _prompt_logprobs_are_whole(self) -> Self:
        if self.prompt_logprobs is not None and self.stream:
            message = "prompt_logprobs is only allowed when stream is false"
            raise ApiError(400, message, param="prompt_logprobs")
        return self

    @model_validator(mode="after")
    def _token_ids_need_logprobs(self) -> Self:
        if self.logprob_token_ids and self.num_top_logprobs is None:
            message = "logprob_token_ids is only allowed together with logprobs"
            raise ApiError(400, message, param="logprob_token_ids")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if not self.stop:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wanted_max_tokens(self) -> int | None:
        """How many tokens the client asked for, if it did."""
        return self.max_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """Logprobs of how many alternatives, None for no logprobs at all."""
        raise NotImplementedError

    @property
    def num_top_prompt_logprobs(self) -> int | None:
        """Of how many alternatives beside the prompt's tokens, None to leave these unscored."""
        return self.prompt_logprobs


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = GenerationRequest.UNSUPPORTED | {
        "suffix": ("",),
        "prompt_embeds": (),
    }

    prompt: Annotated[str | TokenIds | Texts | TokenIdLists, Field(union_mode="left_to_right")]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """0 asks for the prompt alone: echoed, scored, or both."""
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0)] | None = None
    best_of: int | None = None
    add_special_tokens: bool = True

    @field_validator("logprobs", mode="before")
    @classmethod
    def _logprobs_count(cls, value: Any) -> Any:
        return _refuse_boolean(value)

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _one_message_for_all_forms(cls, prompt: Any, check: ValidatorFunctionWrapHandler) -> Any:
        if prompt == []:
            raise ValueError("must not be empty")
        try:
            return check(prompt)
        except ValidationError:
            raise ValueError(_PROMPT_FORMS) from None

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

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, whatever form they came in."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and isinstance(prompt[0], int):
            return [prompt]
        return cast("list[str] | list[list[int]]", prompt)

    @property
    def num_top_logprobs(self) -> int | None:
        """Logprobs of how many alternatives, None for no logprobs at all."""
        return self.logprobs

    @property
    def num_top_prompt_logprobs(self) -> int | None:
        """Of how many alternatives beside the prompt's tokens, None to leave these unscored."""
        echoed = self.logprobs if self.echo else None
        wishes = [wish for wish in (echoed, self.prompt_logprobs) if wish is not None]
        return max(wishes, default=None)


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    TOP_LOGPROBS_PARAM: ClassVar[str] = "top_logprobs"
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = GenerationRequest.UNSUPPORTED | {
        "functions": (),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "reasoning_effort": (),
        "include_reasoning": (True,),
        "web_search_options": (),
        "chat_template": (),
        "documents": ([],),
        "mm_processor_kwargs": ({},),
        "media_io_kwargs": ({},),
        "echo": (False,),
    }

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

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
            message = "tool_choice demands a call, but there are no tools"
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
        """How many tokens the client asked for, if it did."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """Logprobs of how many alternatives, None for no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        """The tools that the model sees and whose calls are looked for; None for none."""
        return None if self.tool_choice == "none" else self.tools or None


class TokenizeRequest(RequestModel):
    """POST /tokenize: a prompt, or messages as a chat would see them."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "chat_template": (),
        "mm_processor_kwargs": ({},),
        "media_io_kwargs": ({},),
    }

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool = False

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
        """The tools that the model would see; None for none."""
        return self.tools or None


class DetokenizeRequest(RequestModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds


def _refuse_boolean(value: Any) -> Any:
    # pydantic reads true as 1, and a temperature of false as greedy.
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value
