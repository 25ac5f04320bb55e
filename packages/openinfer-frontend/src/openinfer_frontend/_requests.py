"""Request bodies, validated at the edge.

Unknown fields are ignored: SDKs and proxies add their own. Fields that are known, change the
output, and are not supported are refused by name (`RequestModel.refuse_unsupported`).
"""

from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from openinfer_frontend.errors import ApiError

TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
StopString = Annotated[str, Field(max_length=1024)]
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
    return_timings: bool = False
    """Whether each choice says where its time went."""
    request_id: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")] | None = None
    """Names the response; the header X-Request-Id comes first."""
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0)] | None = None
    logprob_token_ids: Annotated[TokenIds, Field(max_length=128)] | None = None

    @field_validator(*_NUMBERS, mode="before")
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        return refuse_boolean(value)

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


def refuse_boolean(value: Any) -> Any:
    """For validators: the value, unless it is a boolean.

    Raises:
        ValueError: it is.
    """
    # pydantic reads true as 1, and a temperature of false as greedy.
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value
