"""Request bodies, validated at the edge.

Unknown fields are ignored where output is asked for: SDKs and proxies add their own. Fields that
are known, change the output, and are not supported are refused by name
(`RequestModel.refuse_unsupported`).
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
    """Clients send null for what they leave out, and OpenAI's own types allow it."""
    return BeforeValidator(lambda value: default if value is None else value)


_BIAS_FORM = "must be an object of numbers by token id"
_MAX_KEY_CHARS = 32


def _by_slices(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Validates an object slice by slice, up to the first with an error."""
    if not isinstance(value, dict):
        raise ValueError(_BIAS_FORM)
    items = list(value.items())
    checked: dict[Any, Any] = {}
    try:
        for at in range(0, len(items), _SLICE):
            checked |= check(dict(items[at : at + _SLICE]))
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])[:_MAX_KEY_CHARS]
        raise ValueError(f"{_BIAS_FORM}; that of {key!r} is none") from None
    return checked


def wrong_entry(field: str, error: ValidationError, message: str) -> ApiError | None:
    """The answer that names the entry at fault; None if it is the field as a whole.

    Args:
        field: its name.
        error: of its lists' forms; that which got furthest counts.
        message: what an entry must be.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    place = max(tuple(part for part in e["loc"] if isinstance(part, int)) for e in found)
    if not place:
        return None
    param = field + "".join(f"[{index}]" for index in place)
    return ApiError.invalid(param, message)


Off = Annotated[bool, _null_is(False)]
"""A flag that is false where it is left out or null."""
On = Annotated[bool, _null_is(True)]
"""One that is true there."""
_MODES_AT_VLLM = {"raw_logprobs": "raw", "processed_logprobs": "processed"}


def _logprobs_mode(value: Any) -> Any:
    return _MODES_AT_VLLM.get(value, value) if isinstance(value, str) else value


LogprobsMode = Annotated[
    Literal["raw", "processed"], BeforeValidator(_logprobs_mode), _null_is("raw")
]
"""Of what logprobs are; vLLM's names for the same are taken, too."""
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
# Every list of a body stops at its first wrong item: two million errors are half a gigabyte.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Biases = Annotated[dict[int, float], WrapValidator(_by_slices)]
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
MAX_STOPS = 64
_STOP_FORM = "must be a string of 1 to 1024 characters"
_STOP_FORMS = f"must be a string or at most {MAX_STOPS} strings of at most 1024 characters each"


class RequestModel(BaseModel):
    """A body: known fields with their bounds, and of all others those in `UNSUPPORTED`."""

    model_config = ConfigDict(
        extra="allow", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Known fields that cannot be honoured, with the values that ask for nothing."""

    @model_validator(mode="after")
    def _drop_unknown_fields(self) -> Self:
        # A body lives as long as its response, and unknown fields are not bounded by type.
        # Four bodies of 30 MB of such fields took a front process from 1.0 to 3.7 GB.
        unknown = self.__pydantic_extra__ or {}
        for name in [name for name in unknown if name not in self.UNSUPPORTED]:
            del unknown[name]
        return self

    @classmethod
    def bounds_of(cls, name: str) -> str:
        """What a field's integers are bounded by, to stand behind a message; may be empty."""
        field = cls.model_json_schema()["properties"].get(name, {})
        for form in field.get("anyOf", [field]):
            if form.get("type") == "integer" and "exclusiveMaximum" in form:
                return f"; it takes {form['minimum']} to {form['exclusiveMaximum'] - 1}"
            if form.get("type") == "integer" and "minimum" in form:
                return f"; it takes {form['minimum']} or more"
        return ""

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

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    include_usage: Off = False
    """Whether the last chunk has the usage."""
    continuous_usage_stats: Off = False
    """Whether every chunk has the usage so far."""


class GenerationRequest(RequestModel):
    """The fields that completions and chat completions share."""

    TOP_LOGPROBS_PARAM: ClassVar[str] = "logprobs"
    """Which field says how many alternatives are wanted."""
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
    """One of the names served; left out: the first."""
    stream: Off = False
    """Whether the answer comes as server-sent events."""
    stream_options: StreamOptions | None = None
    """What a stream carries besides the output; only with `stream`."""
    n: Annotated[int, Field(ge=1), _null_is(1)] = 1
    """Samples of each prompt."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Output tokens at most; more than there is room for means all there is room for."""
    min_tokens: Annotated[int, Field(ge=0), _null_is(0)] = 0
    """Until so many there is no stop, neither by token nor by string."""
    temperature: float | None = None
    """0 takes the likeliest token; left out: the checkpoint's, else 1."""
    top_p: float | None = None
    """Keep the smallest set of tokens whose probability reaches this."""
    top_k: Annotated[int, Field(ge=-1, lt=2**63)] | None = None
    """Keep the likeliest k tokens; 0 and -1 switch it off."""
    min_p: float | None = None
    """Drop tokens below this share of the largest probability."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    """Makes sampling reproducible; sample i of n differs from the others."""
    repetition_penalty: float | None = None
    """Above 1 makes tokens of the prompt and the output less likely."""
    presence_penalty: float | None = None
    """Taken off the logits of tokens that the output has."""
    frequency_penalty: float | None = None
    """Taken off them as often as the output has them."""
    logit_bias: Biases | None = None
    """Added to logits, by token id."""
    allowed_token_ids: TokenIds | None = None
    """No other token is drawn."""
    bad_words: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=128)]],
            Field(max_length=128, fail_fast=True),
        ]
        | None
    ) = None
    """Texts that the output must not contain, as sequences of tokens."""
    stop: StopString | StopStrings | None = None
    """A string or up to 64 that end the output, and are not in it."""
    stop_token_ids: TokenIds | None = None
    """Tokens that end the output."""
    ignore_eos: Off = False
    """Lets the model's own end of text pass."""
    include_stop_str_in_output: Off = False
    """Shows what ended the output."""
    skip_special_tokens: On = True
    """Whether special tokens are left out of the text."""
    spaces_between_special_tokens: On = True
    """Whether special tokens that are shown have spaces between them."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Cached prompts are shared with requests of the same salt alone."""
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, lt=MAX_PRIORITY), _null_is(0)] = 0
    """Lower runs earlier, under policies that look at it; the header X-Vllm-Priority comes
    first."""
    deadline_ms: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """After so many milliseconds the request is given up: a 408, in a stream its last event."""
    user: str | None = None
    """Names the tenant, if it is a short text; the header X-Tenant-ID comes first."""
    session_id: Annotated[str, Field(max_length=MAX_SESSION_ID_CHARS)] | None = None
    """Which session it belongs to; the header X-Session-ID comes first."""
    return_token_ids: Off = False
    """Adds the ids of prompt and output."""
    return_tokens_as_token_ids: Off = False
    """Spells tokens in logprobs as `token_id:N`."""
    return_timings: Off = False
    """Whether each choice says where its time went."""
    request_id: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")] | None = None
    """Names the response; the header X-Request-Id comes first."""
    response_format: dict[str, Any] | None = None
    """`text`, `json_object` or `json_schema`, as at OpenAI; or `structural_tag`, as in vLLM."""
    structured_outputs: dict[str, Any] | None = None
    """`json`, `regex`, `choice`, `grammar`, `json_object` or `structural_tag`, as in vLLM."""
    prompt_logprobs: Annotated[int, Field(ge=0)] | None = None
    """Scores the prompt, with so many alternatives to each token; not in a stream."""
    logprob_token_ids: Annotated[TokenIds, Field(max_length=128)] | None = None
    """Tokens whose logprobs are wanted at every position; only with logprobs."""
    logprobs_mode: LogprobsMode = "raw"
    """raw: the model's own. processed: of what was drawn from, after every control; only with
    logprobs. `raw_logprobs` and `processed_logprobs` are the same."""

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
            raise ValueError(f"{_STOP_FORMS}; these are {len(stop)}")
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
    def _what_needs_logprobs(self) -> Self:
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
