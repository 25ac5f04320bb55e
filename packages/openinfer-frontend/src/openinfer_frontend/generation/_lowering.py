"""Lowering of a validated body to `GenerateRequest`s."""

import time
from collections.abc import Collection
from dataclasses import dataclass

from openinfer_contract import (
    CacheOptions,
    EngineInfo,
    GenerateRequest,
    LogprobOptions,
    PromptLogprobOptions,
    Rejected,
    Sampling,
    StopRules,
    check_length,
    check_request,
    num_ids,
    pack_ids,
)
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._structured_output import OutputConstraint
from openinfer_frontend.generation._text_work import Prompt
from openinfer_frontend.protocols._generation_request import GenerationRequest
from openinfer_text import GenerationDefaults

DEFAULT_COMPLETION_TOKENS = 16
_PROBE = Prompt(token_ids=pack_ids((0,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Values that a request's headers and route add to its body."""

    response_id: str
    """The id of the response; with a suffix, of its engine requests."""
    prompt_param: str
    """The route's name of its input: prompt or messages."""
    default_max_tokens: int | None
    """Maximum output tokens if the body does not say; None: all there is room for."""
    tenant: str = ""
    """The tenant that a gateway names; preferred over the body's `user`."""
    session_id: str = ""
    """Preferred over the body's field."""
    priority: int | None = None
    """Preferred over the body's field."""
    trace_parent: str = ""


class Lowering:
    """One body in the engine's terms, without the prompt and the sample's number.

    Attributes:
        eos_token_ids: ids at which the model ends; `stop_reason` does not name them.
        stop_token_ids: all ids at which the engine ends a sequence of this request.
        grammar: the grammar of its output, or None.
        limit_s: the server's time limit in seconds; None if there is none, or if the request's own
            deadline is earlier.
    """

    def __init__(
        self,
        request: GenerationRequest,
        context: RequestContext,
        info: EngineInfo,
        defaults: GenerationDefaults,
        eos_token_ids: Collection[int],
        bad_words: tuple[bytes, ...] = (),
        constraint: OutputConstraint | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Lowers and checks `request`, before its prompt costs anything.

        Args:
            request: a validated body.
            context: what its headers and route add.
            info: the engine's.
            defaults: the checkpoint's, for what the body leaves out.
            eos_token_ids: ids at which the model ends.
            bad_words: token ids of each bad word, as u32 columns.
            constraint: on the output.
            timeout_s: the server's time limit for any request.

        Raises:
            ApiError: the engine would refuse the request, whatever its prompt is.
        """
        self._request = request
        self._context = context
        self._info = info
        self._defaults = defaults
        self._bad_words = bad_words
        self._constraint = constraint
        self.grammar = None if constraint is None else constraint.grammar
        self._arrival = time.monotonic()
        self._set_deadline(timeout_s)
        self._first_sampling = self._lower_sampling(0)
        self._set_stops(eos_token_ids)
        self._check_counts()
        self._logprobs, self._prompt_logprobs = self._lower_logprobs()
        self._check_ids()
        self._raise_if(check_request(self._build(_PROBE, 0, context.response_id), info))

    def _set_deadline(self, timeout_s: float | None) -> None:
        own_ms = self._request.deadline_ms
        own_s = None if own_ms is None else own_ms / 1000
        is_own = own_s is not None and (timeout_s is None or own_s <= timeout_s)
        self.limit_s = None if is_own else timeout_s
        seconds = own_s if is_own else timeout_s
        self._deadline = None if seconds is None else self._arrival + seconds

    def _set_stops(self, eos_token_ids: Collection[int]) -> None:
        explicit = dict.fromkeys(self._request.stop_token_ids or ())
        known_to_engine = frozenset(self._info.eos_token_ids)
        every_eos = known_to_engine.union(eos_token_ids)
        ignore_eos = self._request.ignore_eos
        self.eos_token_ids = frozenset() if ignore_eos else every_eos
        self.stop_token_ids = self.eos_token_ids.union(explicit)
        extra = [] if ignore_eos else sorted(every_eos - known_to_engine)
        self._stop_ids = tuple(dict.fromkeys([*explicit, *extra]))

    def _lower_logprobs(self) -> tuple[LogprobOptions | None, PromptLogprobOptions | None]:
        request, output, prompt = self._request, None, None
        if request.num_top_logprobs is not None:
            output = LogprobOptions(
                num_top=request.num_top_logprobs,
                token_ids=pack_ids(request.logprob_token_ids or ()),
                mode=request.logprobs_mode,
            )
        if request.num_top_prompt_logprobs is not None:
            prompt = PromptLogprobOptions(num_top=request.num_top_prompt_logprobs)
        return output, prompt

    def build(self, prompt: Prompt, sample: int, request_id: str) -> GenerateRequest:
        """Returns the engine request of one sample of one prompt.

        Raises:
            ApiError: the request cannot be honoured.
        """
        if not prompt.token_ids:
            param = prompt.param or self._context.prompt_param
            raise ApiError(400, f"{param} must not be empty", param=param)
        request = self._build(prompt, sample, request_id)
        # The probe prompt checked everything else.
        self._raise_if(check_length(request, self._info), prompt.param)
        return request

    def _build(self, prompt: Prompt, sample: int, request_id: str) -> GenerateRequest:
        context, most = self._context, self._info.limits.max_model_len
        room = max(1, most - num_ids(prompt.token_ids))
        wanted = self._request.wanted_max_tokens
        if room < self._request.min_tokens <= (wanted or 0) and num_ids(prompt.token_ids) < most:
            message = (
                f"min_tokens must be at most {room}: the prompt leaves that much room in the "
                f"model's context of {most} tokens"
            )
            raise ApiError(400, message, param="min_tokens")
        if wanted is None:
            wanted = context.default_max_tokens or room
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=prompt.token_ids,
            stop=StopRules(
                # Scoring a prompt ends with logits, and the engine always samples a token from
                # them.
                max_tokens=max(1, min(wanted, room)),
                min_tokens=self._request.min_tokens,
                stop_token_ids=self._stop_ids,
                ignore_eos=self._request.ignore_eos,
            ),
            sampling=self._sampling(sample),
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            grammar=self.grammar,
            cache=CacheOptions(
                salt=(self._request.cache_salt or "").encode(), boundaries=prompt.boundaries
            ),
            priority=self._request.priority if context.priority is None else context.priority,
            tenant=context.tenant or self._request.user or "",
            session_id=context.session_id or self._request.session_id or "",
            deadline=self._deadline,
            trace_parent=context.trace_parent,
            arrival=self._arrival,
        )

    def _sampling(self, sample: int) -> Sampling:
        is_first = sample == 0 or self._request.seed is None
        return self._first_sampling if is_first else self._lower_sampling(sample)

    def _lower_sampling(self, sample: int) -> Sampling:
        request = self._request
        return self._defaults.sampling(
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            min_p=request.min_p,
            repetition_penalty=request.repetition_penalty,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            seed=request.seed,
            sample=sample,
            logit_bias=request.logit_bias,
            allowed_token_ids=request.allowed_token_ids,
            bad_words=self._bad_words,
        )

    def _raise_if(self, rejected: Rejected | None, prompt_param: str = "") -> None:
        if rejected is None:
            return
        constraint = self._constraint
        raise ApiError.from_end(
            rejected,
            prompt_param=prompt_param or self._context.prompt_param,
            # The engine supports no grammars at all: this names the field that needs one.
            grammar_param=None if constraint is None else constraint.demand or constraint.param,
        )

    def _check_counts(self) -> None:
        most, request = self._info.limits.max_logprobs, self._request
        for feature, param, count in (
            ("logprobs", request.TOP_LOGPROBS_PARAM, request.num_top_logprobs),
            ("prompt_logprobs", "prompt_logprobs", request.prompt_logprobs),
        ):
            if count is not None and count > most and feature in self._info.honoured:
                raise ApiError(400, f"{param} must be at most {most}", param=param)
        # With max_tokens 0 the engine is asked for one token, so its own check would pass.
        if request.wanted_max_tokens == 0 and request.min_tokens > 0:
            message = "min_tokens must be between 0 and max_tokens"
            raise ApiError(400, message, param="min_tokens")

    def _check_ids(self) -> None:
        size = self._info.vocab_size
        request = self._request
        for param, ids in (
            ("logit_bias", request.logit_bias or ()),
            ("allowed_token_ids", request.allowed_token_ids or ()),
            ("logprob_token_ids", request.logprob_token_ids or ()),
        ):
            if any(not 0 <= token_id < size for token_id in ids):
                raise ApiError(400, f"{param}: token ids must be below {size}", param=param)
