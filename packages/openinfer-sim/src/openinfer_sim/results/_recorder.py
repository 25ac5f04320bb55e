"""What clients saw, request by request."""

from array import array
from dataclasses import dataclass, field

from openinfer_contract import Failed, Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as its client saw it. Times are seconds on the simulation's clock.

    Attributes:
        tenant: whose it was.
        arrival: when the client sent it.
        first_token_at: when its first token was read; None without one.
        ended_at: when its last token was read, or the refusal.
        num_prompt_tokens: of its prompt.
        num_cached_tokens: of these, found in the cache when it was first scheduled.
        num_output_tokens: received.
        num_preemptions: how often it was recomputed.
        outcome: "stop", "length", "abort", "failed" or "rejected".
        replica: index of the engine that served it.
    """

    tenant: str
    arrival: float
    first_token_at: float | None
    ended_at: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int
    outcome: str
    replica: int

    @property
    def is_served(self) -> bool:
        """Whether it got all its tokens."""
        return self.outcome in ("stop", "length")

    @property
    def ttft_s(self) -> float:
        """Time to the first token; the request has one."""
        assert self.first_token_at is not None
        return self.first_token_at - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """Mean time of an output token after the first; None with fewer than two."""
        if self.first_token_at is None or self.num_output_tokens < 2:
            return None
        return (self.ended_at - self.first_token_at) / (self.num_output_tokens - 1)


@dataclass(slots=True)
class Recorder:
    """Collects records and the times between tokens of all requests together."""

    records: list[RequestRecord] = field(default_factory=list)
    inter_token_s: "array[float]" = field(default_factory=lambda: array("f"))
    first_refusal: str = ""
    """Why the first request was refused that was; empty if none."""


def outcome_of(end: object) -> str:
    """How a stream ended, in one word."""
    if isinstance(end, Finished):
        return end.reason
    return "failed" if isinstance(end, Failed) else "rejected"
