"""Requests that the scheduler does not know yet, because of a compiling grammar or a pause."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from openinfer_contract import GenerateRequest, Limits, Rejected


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request and the time of its arrival."""

    request: GenerateRequest
    arrival: float


class HeldRequests:
    """Held requests by id, in order of arrival, within the limits of the waiting queue."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: dict[str, HeldRequest] = {}
        self._next_deadline = math.inf
        """No held request has an earlier deadline than this."""
        self.num_tokens = 0
        """Prompt tokens of all held requests."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._held))

    def add(self, request: GenerateRequest, now: float) -> Rejected | None:
        """Adds a request, or returns why there is no room for it."""
        limits = self._limits
        num_tokens = self.num_tokens + request.num_prompt_tokens
        # As in the scheduler's queue, a prompt above the limit may be held if it is the only one.
        if len(self._held) >= limits.max_queued_requests or (
            self._held and num_tokens > limits.max_queued_tokens
        ):
            message = (
                f"too many requests wait (limits: {limits.max_queued_requests} requests, "
                f"{limits.max_queued_tokens} prompt tokens); retry later"
            )
            return Rejected(kind="overloaded", message=message, retry_after_s=1.0)
        self._held[request.request_id] = HeldRequest(request, now)
        self.num_tokens = num_tokens
        self._next_deadline = min(self._next_deadline, _deadline(request))
        return None

    def pop(self, request_id: str) -> HeldRequest | None:
        """Removes and returns a request; None if it is not held."""
        held = self._held.pop(request_id, None)
        if held is not None:
            self.num_tokens -= held.request.num_prompt_tokens
        return held

    def expired(self, now: float) -> list[str]:
        """Returns the ids whose deadline has passed. Takes constant time if there are none."""
        if now < self._next_deadline:
            return []
        deadlines = {request_id: _deadline(held.request) for request_id, held in self._held.items()}
        self._next_deadline = min((d for d in deadlines.values() if d > now), default=math.inf)
        return [request_id for request_id, deadline in deadlines.items() if deadline <= now]


def _deadline(request: GenerateRequest) -> float:
    return math.inf if request.deadline is None else request.deadline
