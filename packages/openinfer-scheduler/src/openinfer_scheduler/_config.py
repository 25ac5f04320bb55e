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
        ValueError: a value is out of range; the message names the field.
    """

    max_model_len: int
    """Upper bound on prompt and output tokens of one sequence."""
    max_num_seqs: int
    """Number of slots: upper bound on rows of one step."""
    max_num_batched_tokens: int
    """Upper bound on tokens forwarded in one step. Must be at least
    `max_num_seqs * (1 + num_draft_tokens)`: then every decoding sequence fits into every step."""
    depth: int = 2
    """Upper bound on plans in flight: 1 if steps run on the host, 2 if they run on a device."""
    max_queued_requests: int = 4096
    """Upper bound on waiting requests; `add` rejects further ones as overloaded."""
    max_queued_tokens: int = 16_000_000
    """Upper bound on prompt tokens of waiting requests. An empty queue takes any single request."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end a sequence unless its request sets `ignore_eos`."""
    admission: Literal["optimistic", "lifetime"] = "optimistic"
    """optimistic: admits a sequence when its first chunk fits, and preempts when blocks run out.
    lifetime: admits a sequence when every block that it may ever need is available; never preempts.
    """
    max_chunk_tokens: int | None = None
    """Upper bound on tokens of one prefill chunk. None: only the step's budget limits it."""
    max_partial_prefills: int | None = None
    """Upper bound on sequences whose prompt is partly forwarded. At the limit, a sequence starts
    only if its first chunk completes its prompt. None: no limit."""
    target_itl_s: float | None = None
    """Target in seconds for the gap between two tokens of a sequence; 99 % of the gaps keep it.
    Steps with decode rows take no more prefill tokens than measured step times allow, but always at
    least `MIN_PREFILL_TOKENS` (see `PrefillPace`). None: no such limit."""
    num_draft_tokens: int = 0
    """Upper bound on drafted tokens that a decode row verifies. Requests may decline drafts with
    `speculate=False`. Requests with a grammar, a penalty or bad words get no drafts."""
    max_adapters: int | None = None
    """Upper bound on distinct adapters of running sequences. None: no limit."""
    role: Literal["both", "prefill", "decode"] = "both"
    """prefill: takes only requests for a single output token, so no plan has a decode row. decode:
    takes only requests whose prompt is cached except for the last block, see `Scheduler.loaded`."""
    watermark: float = 0.01
    """Share of the pool that optimistic admission leaves free while a sequence runs, in [0, 1)."""
    overload_retry_after_s: float = 1.0
    """`Rejected.retry_after_s` of overloaded requests."""
    seed: int | None = None
    """Start of the counter from which requests without a seed get theirs. None: a random start."""

    def __post_init__(self) -> None:
        for name in _COUNTS + _OPTIONAL_COUNTS:
            value = getattr(self, name)
            if (value is not None or name in _COUNTS) and not _is_count(value, 1):
                raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}"
                )
        if not _is_count(self.num_draft_tokens, 0):
            raise ValueError(
                f"num_draft_tokens must be an integer of at least 0, not {self.num_draft_tokens!r}"
            )
        if self.seed is not None and not _is_count(self.seed, 0):
            raise ValueError(f"seed must be an integer of at least 0, not {self.seed!r}")
        if not all(_is_count(token_id, 0) for token_id in self.eos_token_ids):
            raise ValueError(
                f"eos_token_ids must be integers of at least 0, not {self.eos_token_ids}"
            )
        num_decoded = self.max_num_seqs * (1 + self.num_draft_tokens)
        if self.max_num_batched_tokens < num_decoded:
            factor = f" * (1 + num_draft_tokens={self.num_draft_tokens})"
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs{factor if self.num_draft_tokens else ''} = {num_decoded}"
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
