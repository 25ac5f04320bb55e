"""Request bodies: types of fields, and the fields that all generating bodies share.

Unknown fields are ignored: SDKs and proxies add their own. Known fields that would change the
output and are not supported are refused by name (`RequestModel.refuse_unsupported`).
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from openinfer_frontend.errors import ApiError
from openinfer_text import MAX_TEMPLATE_CHARS


def _null_is(default: object) -> BeforeValidator:
    """Replaces null by the default: clients send null for fields that they leave out."""
    return BeforeValidator(lambda value: default if value is None else value)


_BIAS_FORM = "must be an object of numbers by token id"
_MAX_KEY_CHARS = 32


def _validate_in_slices(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Validates an object slice by slice, up to the first slice with an error."""
    if not isinstance(value, dict):
        raise ValueError(_BIAS_FORM)
    items = list(value.items())
    checked: dict[Any, Any] = {}
    try:
        for at in range(0, len(items), _SLICE):
            checked |= check(dict(items[at : at + _SLICE]))
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])[:_MAX_KEY_CHARS]
        raise ValueError(f"{_BIAS_FORM}; the entry {key!r} is wrong") from None
    return checked


def wrong_entry(field: str, error: ValidationError, message: str) -> ApiError | None:
    """Returns an error that names the wrong entry of a list, or None if the whole field is wrong.

    Args:
        field: the field's name.
        error: the errors of all forms that the field may have; the error deepest in the body
            counts.
        message: what an entry must be.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    place = max(tuple(part for part in e["loc"] if isinstance(part, int)) for e in found)
    if not place:
        return None
    param = field + "".join(f"[{index}]" for index in place)
    return ApiError.invalid(param, message)


Off = Annotated[bool, _null_is(False)]
"""A boolean field; false if it is left out or null."""
On = Annotated[bool, _null_is(True)]
"""A boolean field; true if it is left out or null."""
_MODES_AT_VLLM = {"raw_logprobs": "raw", "processed_logprobs": "processed"}


def _logprobs_mode(value: Any) -> Any:
    return _MODES_AT_VLLM.get(value, value) if isinstance(value, str) else value


LogprobsMode = Annotated[
    Literal["raw", "processed"], BeforeValidator(_logprobs_mode), _null_is("raw")
]
"""Which logprobs are returned; vLLM's names are accepted too."""
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
# Lists fail at their first wrong entry, because two million errors would take half a gigabyte.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Biases = Annotated[dict[int, float], WrapValidator(_validate_in_slices)]
TemplateSource = Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARS)]
StopString = Annotated[str, Field(max_length=1024)]
StopStrings = Annotated[list[StopString], Field(fail_fast=True)]
_NUMBERS = (
    *("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "priority"),
    "deadline_ms",
    "prompt_logprobs",
)
MAX_PRIORITY = 2**31
MAX_SESSION_ID_CHARS = 512
_MAX_USER_CHARS = 512
_SLICE = 64
_REPLACEMENTS = {
    "functions": "tools",
    "function_call": "tool_choice",
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "structural_tag": "structured_outputs.structural_tag",
}
"""The field that replaces an older one."""
MAX_STOPS = 64
_STOP_FORM = "must be a string of 1 to 1024 characters"
_STOP_FORMS = f"must be a string or at most {MAX_STOPS} strings of at most 1024 characters each"


class RequestModel(BaseModel):
    """A body: its known fields, and the refused fields of `UNSUPPORTED` if it has them."""

    model_config = ConfigDict(
        extra="allow", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Known fields that cannot be honoured, with the values that are accepted because they ask for
    nothing."""

    @model_validator(mode="after")
    def _drop_unknown_fields(self) -> Self:
        # A body lives as long as its response, and unknown fields have no limits. Four bodies of 28
        # MB took a front process 2.8 GB.
        unknown = self.__pydantic_extra__ or {}
        for name in [name for name in unknown if name not in self.UNSUPPORTED]:
            del unknown[name]
        return self

    @classmethod
    def bounds_of(cls, name: str) -> str:
        """Returns the bounds of an integer field as the end of a message, empty without bounds."""
        field = cls.model_json_schema()["properties"].get(name, {})
        for form in field.get("anyOf", [field]):
            if form.get("type") == "integer" and "exclusiveMaximum" in form:
                return f"; it takes {form['minimum']} to {form['exclusiveMaximum'] - 1}"
            if form.get("type") == "integer" and "minimum" in form:
                return f"; it takes {form['minimum']} or more"
        return ""

    def refuse_unsupported(self) -> None:
        """Refuses known fields that are not supported.

        Raises:
            ApiError: 400, naming the first of them.
        """
        for name, value in (self.model_extra or {}).items():
            harmless = self.UNSUPPORTED.get(name)
            if harmless is not None and value is not None and value not in harmless:
                instead = f"; use {_REPLACEMENTS[name]}" if name in _REPLACEMENTS else ""
                message = f"{name} is not supported by this server{instead}"
                raise ApiError(400, message, param=name)


class StreamOptions(BaseModel):
    """Optional contents of a stream."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    include_usage: Off = False
    """Whether the last chunk has the usage."""
    continuous_usage_stats: Off = False
    """Whether every chunk has the usage so far."""


class GenerationRequest(RequestModel):
    """The fields that completions and chat completions share."""

    TOP_LOGPROBS_PARAM: ClassVar[str] = "logprobs"
    """The field that sets the number of alternatives."""
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "use_beam_search": (False,),
        "length_penalty": (1,),
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
    """A served model name; default: the first one."""
    stream: Off = False
    """Whether to respond with server-sent events."""
    stream_options: StreamOptions | None = None
    """Optional contents of a stream; only with `stream`."""
    n: Annotated[int, Field(ge=1), _null_is(1)] = 1
    """Number of samples of each prompt."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of output tokens. If the context has less room, the output ends there."""
    min_tokens: Annotated[int, Field(ge=0), _null_is(0)] = 0
    """Minimum number of output tokens. Stop tokens and stop strings are ignored until then."""
    temperature: float | None = None
    """0 always takes the likeliest token. Default: the checkpoint's, else 1."""
    top_p: float | None = None
    """Keeps the smallest set of tokens whose probabilities add up to this."""
    top_k: Annotated[int, Field(ge=-1, lt=2**63)] | None = None
    """Keeps the k likeliest tokens; 0 and -1 keep all."""
    min_p: float | None = None
    """Drops tokens below this share of the largest probability."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    """Makes sampling reproducible; each of the `n` samples differs from the others."""
    repetition_penalty: float | None = None
    """Values above 1 make tokens of the prompt and the output less likely."""
    presence_penalty: float | None = None
    """Subtracted from the logits of tokens that occur in the output."""
    frequency_penalty: float | None = None
    """Subtracted from the logits of tokens once for each occurrence in the output."""
    logit_bias: Biases | None = None
    """Added to logits, by token id."""
    allowed_token_ids: TokenIds | None = None
    """Only these tokens are sampled."""
    bad_words: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=128)]],
            Field(max_length=128, fail_fast=True),
        ]
        | None
    ) = None
    """Texts that must not occur in the output, as sequences of tokens."""
    stop: StopString | StopStrings | None = None
    """One string or up to 64 that end the output and are not part of it."""
    stop_token_ids: TokenIds | None = None
    """Tokens that end the output."""
    ignore_eos: Off = False
    """Whether to continue after the model's own end of text."""
    include_stop_str_in_output: Off = False
    """Whether the text includes the string or token that ended it."""
    skip_special_tokens: On = True
    """Whether to leave special tokens out of the text."""
    spaces_between_special_tokens: On = True
    """Whether special tokens that are shown have spaces between them."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Cached prompts are shared only with requests of the same salt."""
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, lt=MAX_PRIORITY), _null_is(0)] = 0
    """Lower values run earlier, under policies that use it. The header X-Vllm-Priority is
    preferred."""
    deadline_ms: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Milliseconds after which the request ends with a 408; in a stream, as the last event."""
    user: str | None = None
    """Names the tenant, if it is a short text. The header X-Tenant-ID is preferred."""
    session_id: Annotated[str, Field(max_length=MAX_SESSION_ID_CHARS)] | None = None
    """Names the session. The header X-Session-ID is preferred."""
    return_token_ids: Off = False
    """Whether to return the ids of prompt and output."""
    return_tokens_as_token_ids: Off = False
    """Whether logprobs spell tokens as `token_id:N`."""
    return_timings: Off = False
    """Whether to return the timings of each choice."""
    request_id: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")] | None = None
    """Names the response. The header X-Request-Id is preferred."""
    response_format: dict[str, Any] | None = None
    """`text`, `json_object` or `json_schema`, as at OpenAI; or `structural_tag`, as in vLLM."""
    structured_outputs: dict[str, Any] | None = None
    """`json`, `regex`, `choice`, `grammar`, `json_object` or `structural_tag`, as in vLLM."""
    prompt_logprobs: Annotated[int, Field(ge=0)] | None = None
    """Returns logprobs of the prompt, with this many alternatives to each token; not in a stream.
    """
    logprob_token_ids: Annotated[TokenIds, Field(max_length=128)] | None = None
    """Tokens whose logprobs are returned at every position; only with logprobs."""
    logprobs_mode: LogprobsMode = "raw"
    """raw: the model's own logprobs. processed: those that were sampled from, after all controls;
    only with logprobs. `raw_logprobs` and `processed_logprobs` mean the same."""

    @field_validator(*_NUMBERS, mode="before")
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        return refuse_boolean(value)

    @field_validator("user", mode="before")
    @classmethod
    def _short_text_or_none(cls, value: Any) -> str | None:
        return value if isinstance(value, str) and len(value) <= _MAX_USER_CHARS else None

    @field_validator("request_id", mode="wrap")
    @classmethod
    def _visible_characters(cls, request_id: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            return check(request_id)
        except ValidationError:
            raise ValueError("must be 1 to 128 visible ASCII characters") from None

    @field_validator("stop", mode="wrap")
    @classmethod
    def _one_message_for_all_stops(cls, stop: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            stop = check(stop)
        except ValidationError as error:
            wrong = wrong_entry("stop", error, _STOP_FORM)
            raise wrong or ValueError(_STOP_FORMS) from None
        if isinstance(stop, list) and len(stop) > MAX_STOPS:
            raise ValueError(f"{_STOP_FORMS}; the list has {len(stop)}")
        if isinstance(stop, list) and "" in stop:
            param = f"stop[{stop.index('')}]"
            raise ApiError.invalid(param, _STOP_FORM)
        if stop == "":
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
    def _options_need_logprobs(self) -> Self:
        wanted = {
            "logprob_token_ids": bool(self.logprob_token_ids),
            "logprobs_mode": self.logprobs_mode != "raw",
        }
        for name, is_wanted in wanted.items():
            if is_wanted and self.num_top_logprobs is None:
                message = f"{name} is only allowed together with logprobs"
                raise ApiError(400, message, param=name)
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if not self.stop:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wanted_max_tokens(self) -> int | None:
        """The maximum number of output tokens that the client asked for, or None."""
        return self.max_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """Alternatives to each output token; None for no logprobs at all."""
        raise NotImplementedError

    @property
    def num_top_prompt_logprobs(self) -> int | None:
        """Alternatives to each prompt token; None for no prompt logprobs."""
        return self.prompt_logprobs


def refuse_boolean(value: Any) -> Any:
    """Returns the value unless it is a boolean; for validators.

    Raises:
        ValueError: the value is a boolean.
    """
    # pydantic would read true as 1, and a temperature of false as greedy sampling.
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value
