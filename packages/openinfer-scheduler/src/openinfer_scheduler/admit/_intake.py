"""The checks of a request before it is queued."""

from openinfer_contract import GenerateRequest, Rejected
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState

PROMPT_NOT_CACHED = (
    "this engine only decodes, and the cache entries of the prompt are not in its cache"
)


class Intake:
    """Checks request id, length, role and room in the queue for `Scheduler.add`."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._config = state.config
        self._num_blocks = state.cache.num_blocks
        self._max_missing = max(group.tokens_per_block for group in state.cache.groups)

    def rejection(self, request: GenerateRequest) -> Rejected | None:
        """Returns why the request cannot be queued, or None."""
        if request.request_id in self._state.live:
            return Rejected(
                kind="duplicate",
                field="request_id",
                message=f"request {request.request_id!r} is already live",
            )
        return self._reject_unservable(request) or self._reject_overload(request)

    def max_total(self, request: GenerateRequest) -> int:
        """Returns the number of known tokens at which the request ends by length."""
        full = request.num_prompt_tokens - request.num_output_prefix + request.stop.max_tokens
        return min(full, self._config.max_model_len)

    def lacks_prompt(self, sequence: SequenceState) -> bool:
        """Returns whether the engine only decodes and misses more than one block of the prompt."""
        if self._config.role != "decode":
            return False
        num_hit = self._state.probe.hit_now(sequence)
        return sequence.num_known_tokens - num_hit > self._max_missing

    def _reject_unservable(self, request: GenerateRequest) -> Rejected | None:
        """Returns why this engine can never serve the request, or None."""
        num_prompt, prefix = request.num_prompt_tokens, request.num_output_prefix
        most, max_tokens = self._config.max_model_len, request.stop.max_tokens
        if num_prompt >= most:
            return _too_long(
                f"the prompt is too long: {num_prompt} tokens, of at most {most - 1}; "
                f"this engine's maximum context length is {most} tokens"
            )
        if not num_prompt:
            return _invalid("prompt_token_ids", "the prompt has no tokens")
        if not max_tokens >= 1:
            return _invalid("stop.max_tokens", f"max_tokens must be at least 1, not {max_tokens}")
        if not 0 <= prefix < min(num_prompt, max_tokens):
            return _invalid(
                "num_output_prefix",
                f"num_output_prefix is {prefix}; it must be below the number of prompt tokens "
                f"({num_prompt}) and below max_tokens ({max_tokens})",
            )
        if self._config.role == "prefill" and max_tokens - prefix > 1:
            return Rejected(
                kind="unsupported",
                field="stop.max_tokens",
                message="this engine only prefills: it generates one token per request, not "
                f"{max_tokens - prefix}",
            )
        max_total = self.max_total(request)
        num_needed = self._state.cache.num_blocks_for(max_total - 1)
        if num_needed > self._num_blocks:
            return _too_long(
                f"{num_prompt} prompt tokens and {max_total - num_prompt} output tokens need "
                f"{num_needed} cache blocks; this engine has {self._num_blocks}"
            )
        return None

    def _reject_overload(self, request: GenerateRequest) -> Rejected | None:
        config, waiting = self._config, self._state.waiting
        num_tokens = waiting.num_tokens + request.num_prompt_tokens
        if len(waiting) < config.max_queued_requests and (
            not waiting or num_tokens <= config.max_queued_tokens
        ):
            return None
        return Rejected(
            kind="overloaded",
            message=f"the queue is full: {len(waiting)} requests with {waiting.num_tokens} tokens "
            f"are waiting, and this request has {request.num_prompt_tokens} tokens; the limits are "
            f"{config.max_queued_requests} requests and {config.max_queued_tokens} tokens",
            retry_after_s=config.overload_retry_after_s,
        )


def _invalid(field: str, message: str) -> Rejected:
    return Rejected(kind="invalid", field=field, message=message)


def _too_long(message: str) -> Rejected:
    return Rejected(kind="too_long", field="prompt_token_ids", message=message)
