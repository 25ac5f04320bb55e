"""Limits and switches of one scheduler."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and switches of one scheduler.

    Raises:
        ValueError: naming the field, if a value makes no sense.
    """

    max_model_len: int
    """Prompt and output tokens of one sequence at most."""
    max_num_seqs: int
    """Slots: rows of one step at most."""
    max_num_batched_tokens: int
    """Tokens forwarded in one step at most; not below `max_num_seqs`, so that every running
    sequence gets at least one token into every step."""
    depth: int = 2
    """Plans that may be in flight: 1 where a step runs on the host, 2 on a device."""
    max_queued_requests: int = 4096
    """Requests that may wait; beyond it `add` rejects as overloaded."""
    max_queued_tokens: int = 16_000_000
    """Prompt tokens of waiting requests at most; a single request always fits an empty queue."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end a sequence unless its request says `ignore_eos`."""
    admission: Literal["optimistic", "lifetime"] = "optimistic"
    """optimistic: admit when the first chunk fits, preempt when blocks run out. lifetime: admit
    when every block the sequence may ever need is there; nothing is ever preempted."""
    max_chunk_tokens: int | None = None
    """Tokens of one prefill chunk at most; None: what the step has left."""
    watermark: float = 0.01
    """Share of the pool that optimistic admission leaves free while anything runs, in [0, 1)."""
    overload_retry_after_s: float = 1.0
    """`Rejected.retry_after_s` of overloaded requests."""
    seed: int | None = None
    """Seeds of requests that bring none come from a counter that starts here; None: from the
    operating system's entropy, once."""

    def __post_init__(self) -> None:
        for name in (
            "max_model_len", "max_num_seqs", "max_num_batched_tokens", "depth",
            "max_queued_requests", "max_queued_tokens",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be below "
                f"max_num_seqs ({self.max_num_seqs})"
            )
        if self.max_chunk_tokens is not None and self.max_chunk_tokens < 1:
            raise ValueError(f"max_chunk_tokens must be at least 1, not {self.max_chunk_tokens}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be in [0, 1), not {self.watermark}")
        if self.admission not in ("optimistic", "lifetime"):
            raise ValueError(f"admission must be optimistic or lifetime, not {self.admission!r}")
