"""What a scheduler refuses before it queues it."""

from openinfer_contract import GenerateRequest, Rejected
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState

PROMPT_NOT_HERE = "this engine only decodes, and the cache entries of the prompt are not here"


class Intake:
    """The checks of `Scheduler.add`: identity, length, role, room in the queue."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._config = state.config
        self._num_blocks = state.cache.num_blocks
        self._max_extend = max(group.tokens_per_block for group in state.cache.groups)

    def rejection(self, request: GenerateRequest) -> Rejected | None:
        """Why the request cannot be queued, or None."""
        if request.request_id in self._state.live:
            return Rejected(
                kind="duplicate",
                field="request_id",
                message=f"request {request.request_id!r} is live already",
            )
        return self._misfit(request) or self._overload(request)

    def max_total(self, request: GenerateRequest) -> int:
        """Known tokens at which the request is over."""
        full = request.num_prompt_tokens - request.num_output_prefix + request.stop.max_tokens
        return min(full, self._config.max_model_len)

    def lacks_prompt(self, sequence: SequenceState) -> bool:
        """Whether the engine only decodes and more than a block of the prompt is not cached."""
        if self._config.role != "decode":
            return False
        num_hit = self._state.probe.hit_now(sequence)
        return sequence.num_known_tokens - num_hit > self._max_extend

    def _misfit(self, request: GenerateRequest) -> Rejected | None:
        """Why a request of this shape is never served here."""
        num_prompt, prefix = request.num_prompt_tokens, request.num_output_prefix
        most, max_tokens = self._config.max_model_len, request.stop.max_tokens
        if num_prompt >= most:
            return _too_long(
                f"the prompt is too long: {num_prompt} tokens, of at most {most - 1}; "
                f"this engine's maximum context length is {most} tokens"
            )
        if not num_prompt:
            return _invalid("prompt_token_ids", "the prompt has no token")
        if not max_tokens >= 1:
            return _invalid("stop.max_tokens", f"max_tokens must be at least 1, not {max_tokens}")
        if not 0 <= prefix < min(num_prompt, max_tokens):
            return _invalid(
                "num_output_prefix",
                f"{num_prompt} prompt tokens, {prefix} of them output, and max_tokens "
                f"{max_tokens} leave nothing to read or to generate",
            )
        if self._config.role == "prefill" and max_tokens - prefix > 1:
            return Rejected(
                kind="unsupported",
                field="stop.max_tokens",
                message="this engine only prefills: it generates one token a request, not "
                f"{max_tokens - prefix}",
            )
        max_total = self.max_total(request)
        num_needed = self._state.cache.num_blocks_for(max_total - 1)
        if num_needed > self._num_blocks:
            return _too_long(
                f"{num_prompt} prompt tokens and {max_total - num_prompt} to generate need "
                f"{num_needed} cache blocks; this engine has {self._num_blocks}"
            )
        return None

    def _overload(self, request: GenerateRequest) -> Rejected | None:
        config, waiting = self._config, self._state.waiting
        num_tokens = waiting.num_tokens + request.num_prompt_tokens
        if len(waiting) < config.max_queued_requests and (
            not waiting or num_tokens <= config.max_queued_tokens
        ):
            return None
        return Rejected(
            kind="overloaded",
            message=f"{len(waiting)} requests with {waiting.num_tokens} tokens are waiting, and "
            f"this one has {request.num_prompt_tokens}; at most "
            f"{config.max_queued_requests} requests with {config.max_queued_tokens} tokens "
            "may wait",
            retry_after_s=config.overload_retry_after_s,
        )


def _invalid(field: str, message: str) -> Rejected:
    return Rejected(kind="invalid", field=field, message=message)


def _too_long(message: str) -> Rejected:
    return Rejected(kind="too_long", field="prompt_token_ids", message=message)
