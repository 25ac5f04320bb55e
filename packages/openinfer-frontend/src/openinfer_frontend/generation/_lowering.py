"""Lowering of a validated body to `GenerateRequest`s."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from openinfer_contract import EngineInfo, GenerateRequest
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._structured_output import OutputConstraint
from openinfer_frontend.generation._text_work import Prompt
from openinfer_frontend.protocols._generation_request import GenerationRequest
from openinfer_text import (
    FieldRejected,
    GenerationDefaults,
    RequestLowering,
    SamplingFields,
    TextModel,
)

DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Values that a request's headers and route add to its body."""

    response_id: str
    """The id of the response. Engine requests have this id with a suffix."""
    prompt_param: str
    """The route's name of its input: prompt or messages."""
    default_max_tokens: int | None
    """Maximum output tokens if the body does not set it; None: as many as the context has room
    for."""
    tenant: str = ""
    """The tenant that a gateway names; preferred over the body's `user`."""
    session_id: str = ""
    """Preferred over the body's field."""
    priority: int | None = None
    """Preferred over the body's field."""
    trace_parent: str = ""


class Lowering:
    """One body in the engine's terms: `RequestLowering` with the errors of HTTP.

    Attributes:
        request: the lowered fields.
    """

    def __init__(
        self,
        request: GenerationRequest,
        context: RequestContext,
        info: EngineInfo,
        model: TextModel,
        defaults: GenerationDefaults,
        constraint: OutputConstraint | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Lowers and checks `request` before its prompt is tokenised.

        Args:
            request: a validated body.
            context: the values that its headers and route add.
            info: the engine's limits and features.
            model: text of the model.
            defaults: the checkpoint's values for fields that the body leaves out.
            constraint: the constraint on the output, or None.
            timeout_s: the server's time limit for any request.

        Raises:
            ApiError: the engine would refuse the request, whatever its prompt is.
        """
        self._context = context
        self._constraint = constraint
        with self._naming_fields():
            self.request = RequestLowering(
                _sampling_fields(request, context),
                info,
                defaults=defaults,
                eos_token_ids=model.stop_token_ids,
                bad_words=model.encode_words(request.bad_words or ()),
                grammar=None if constraint is None else constraint.grammar,
                default_max_tokens=context.default_max_tokens,
                timeout_s=timeout_s,
                trace_parent=context.trace_parent,
                top_logprobs_field=request.TOP_LOGPROBS_PARAM,
            )

    def build(self, prompt: Prompt, sample: int, request_id: str) -> GenerateRequest:
        """Returns the engine request of one sample of one prompt.

        Raises:
            ApiError: the request cannot be honoured.
        """
        if not prompt.token_ids:
            param = prompt.param or self._context.prompt_param
            raise ApiError(400, f"{param} must not be empty", param=param)
        with self._naming_fields(prompt.param):
            return self.request.build(
                request_id, prompt.token_ids, boundaries=prompt.boundaries, sample=sample
            )

    @contextmanager
    def _naming_fields(self, prompt_param: str = "") -> Iterator[None]:
        """Turns a refusal into an error response that names the body's field."""
        try:
            yield
        except FieldRejected as error:
            constraint = self._constraint
            raise ApiError.from_end(
                error.rejected,
                prompt_param=prompt_param or self._context.prompt_param,
                # If the engine supports no grammars, this names the field that needs one.
                grammar_param=None if constraint is None else constraint.demand or constraint.param,
            ) from error


def _sampling_fields(request: GenerationRequest, context: RequestContext) -> SamplingFields:
    """Returns the fields of a body and its headers by the names of `SamplingFields`."""
    return SamplingFields(
        max_tokens=request.wanted_max_tokens,
        min_tokens=request.min_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=request.seed,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=request.logit_bias or {},
        allowed_token_ids=request.allowed_token_ids,
        bad_words=request.bad_words or (),
        stop=request.stops,
        stop_token_ids=request.stop_token_ids or (),
        ignore_eos=request.ignore_eos,
        include_stop_str_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=request.spaces_between_special_tokens,
        logprobs=request.num_top_logprobs,
        logprob_token_ids=request.logprob_token_ids or (),
        logprobs_mode=request.logprobs_mode,
        prompt_logprobs=request.num_top_prompt_logprobs,
        cache_salt=request.cache_salt,
        priority=request.priority if context.priority is None else context.priority,
        deadline_ms=request.deadline_ms,
        tenant=context.tenant or request.user or "",
        session_id=context.session_id or request.session_id or "",
    )
