"""Records of requests, as their clients saw them."""

from array import array
from dataclasses import dataclass, field

from openinfer_contract import Failed, Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as its client saw it. Times are seconds on the simulation's clock.

    Attributes:
        tenant: Tenant of the request.
        arrival: Time at which the client sent it.
        first_token_at: Time at which the client read the first token, or None.
        ended_at: Time at which the client read the last token or the refusal.
        num_prompt_tokens: Number of prompt tokens.
        num_cached_tokens: Number of prompt tokens found cached when it was first scheduled.
        num_output_tokens: Number of output tokens received.
        num_preemptions: Number of preemptions.
        outcome: "stop", "length", "abort", "failed" or "rejected".
        replica: Index of the engine that served it.
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
        """Whether the request got all its tokens."""
        return self.outcome in ("stop", "length")

    @property
    def ttft_s(self) -> float:
        """Time to the first token, in seconds. The request must have one."""
        assert self.first_token_at is not None
        return self.first_token_at - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token after the first. None if there are fewer than two."""
        if self.first_token_at is None or self.num_output_tokens < 2:
            return None
        return (self.ended_at - self.first_token_at) / (self.num_output_tokens - 1)

    @property
    def latency_s(self) -> float:
        """Seconds from sending the request to reading its end."""
        return self.ended_at - self.arrival


@dataclass(slots=True)
class Recorder:
    """Collects the records of a run.

    Attributes:
        records: Requests in the order of their ends.
        inter_token_s: Seconds between consecutive tokens, of all requests together.
        first_refusal: Message of the first rejected request; empty if there is none.
        num_sessions: Number of sessions in the trace.
        session_s: Seconds from the first request to the last token, for each session whose turns
            were all served.
    """

    records: list[RequestRecord] = field(default_factory=list)
    inter_token_s: "array[float]" = field(default_factory=lambda: array("f"))
    first_refusal: str = ""
    num_sessions: int = 0
    session_s: list[float] = field(default_factory=list)


def outcome_of(end: object) -> str:
    """Returns how a stream ended, in one word."""
    if isinstance(end, Finished):
        return end.reason
    return "failed" if isinstance(end, Failed) else "rejected"
