"""Limits and switches of one scheduler."""

import math
from dataclasses import dataclass
from operator import index
from typing import Literal

_COUNTS = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "depth",
    "max_queued_requests", "max_queued_tokens",
)  # fmt: skip
_OPTIONAL_COUNTS = ("max_chunk_tokens", "max_partial_prefills", "max_adapters")
_CHOICES = {"admission": ("optimistic", "lifetime"), "role": ("both", "prefill", "decode")}


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
    """Tokens forwarded in one step at most; not below what all slots decode at once, so that every
    running sequence gets into every step: `max_num_seqs * (1 + num_draft_tokens)`."""
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
    max_partial_prefills: int | None = None
    """Sequences at most whose prompt is partly forwarded at the same time: beyond it nobody starts
    whose first chunk is not the whole rest of its prompt. None: no limit."""
    target_itl_s: float | None = None
    """Seconds between two tokens of a decoding sequence that 99 % of them should not exceed: steps
    with decode rows take no more prefill tokens than measured step times allow, though always
    `MIN_PREFILL_TOKENS` (see `PrefillPace`). None: no such cap."""
    num_draft_tokens: int = 0
    """Drafted tokens that a decode row may verify; requests may decline (`speculate=False`)."""
    max_adapters: int | None = None
    """Distinct adapters of the sequences that run at the same time at most; None: no limit."""
    role: Literal["both", "prefill", "decode"] = "both"
    """prefill: takes only requests of a single output token; no plan has a decode row. decode:
    takes only requests whose prompt is cached, but for the last block; see `Scheduler.loaded`."""
    watermark: float = 0.01
    """Share of the pool that optimistic admission leaves free while anything runs, in [0, 1)."""
    overload_retry_after_s: float = 1.0
    """`Rejected.retry_after_s` of overloaded requests."""
    seed: int | None = None
    """Seeds of requests that bring none come from a counter that starts here; None: from the
    operating system's entropy, once."""

    def __post_init__(self) -> None:
        for name in _COUNTS + _OPTIONAL_COUNTS:
            value = getattr(self, name)
            if (value is not None or name in _COUNTS) and not _is_count(value, 1):
                raise ValueError(f"{name} must be at least 1 and whole, not {value}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}"
                )
        if not _is_count(self.num_draft_tokens, 0):
            raise ValueError(
                f"num_draft_tokens must be whole and >= 0, not {self.num_draft_tokens}"
            )
        if self.seed is not None and not _is_count(self.seed, 0):
            raise ValueError(f"seed must be whole and >= 0, not {self.seed}")
        if not all(_is_count(token_id, 0) for token_id in self.eos_token_ids):
            raise ValueError(f"eos_token_ids must be whole and >= 0, not {self.eos_token_ids}")
        num_decoded = self.max_num_seqs * (1 + self.num_draft_tokens)
        if self.max_num_batched_tokens < num_decoded:
            what = "max_num_seqs" if not self.num_draft_tokens else "decode rows with their drafts"
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be below "
                f"{what} ({num_decoded})"
            )
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be in [0, 1), not {self.watermark}")
        target = self.target_itl_s
        if target is not None and not (0 < target < math.inf):
            raise ValueError(f"target_itl_s must be a positive number of seconds, not {target}")
        if not 0 <= self.overload_retry_after_s < math.inf:
            raise ValueError(
                "overload_retry_after_s must be a number of seconds >= 0, not "
                f"{self.overload_retry_after_s}"
            )


def _is_count(value: int, least: int) -> bool:
    try:
        return index(value) >= least
    except TypeError:
        return False
