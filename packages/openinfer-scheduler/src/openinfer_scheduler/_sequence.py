"""One request on its way through the scheduler, and its stay in a slot."""

import numpy as np

from openinfer_contract import (
    Finished,
    FinishReason,
    GenerateRequest,
    Scheduled,
    TierTokens,
    Timings,
)
from openinfer_kv_cache import BlockKeys, SequenceCache
from openinfer_scheduler._plan import PlannedRow, TokenIds

BYTES_PER_ID = 4
_SEAL_STRIDE = 8
"""Blocks of output tokens that are sealed together."""


class SequenceState:
    """One live request, waiting or running. Policies read it; only the core writes it.

    Attributes:
        request: as it came.
        arrival: monotonic seconds.
        arrival_index: number of the request in order of `Scheduler.add`; unique.
        seed: the request's seed, or the one drawn for it.
        num_known_tokens: prompt and settled output tokens.
        num_cached_tokens: prompt tokens found cached when it was first scheduled.
        num_preemptions: how often it lost its blocks.
    """

    __slots__ = (
        "arrival",
        "arrival_index",
        "first_token_at",
        "is_announced",
        "is_ended",
        "is_shareable",
        "keys",
        "max_total",
        "num_before_output",
        "num_cached_tokens",
        "num_known_tokens",
        "num_preemptions",
        "prompt_logprobs_from",
        "request",
        "request_id",
        "scheduled_at",
        "seed",
        "stay",
        "stop_from",
        "stop_ids",
        "tokens",
    )

    def __init__(
        self,
        request: GenerateRequest,
        *,
        arrival: float,
        arrival_index: int,
        seed: int,
        max_total: int,
        stop_ids: frozenset[int],
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival = arrival
        self.arrival_index = arrival_index
        self.seed = seed
        self.tokens = bytearray(request.prompt_token_ids)
        """u32 column of the known tokens."""
        self.num_known_tokens = request.num_prompt_tokens
        self.num_before_output = self.num_known_tokens - request.num_output_prefix
        self.max_total = max_total
        """Known tokens at which the request has its full length."""
        self.stop_ids = stop_ids
        self.stop_from = self.num_before_output + request.stop.min_tokens
        """A stop id counts only where more tokens than this are known, itself included."""
        self.keys: BlockKeys | None = None
        self.stay: Stay | None = None
        self.is_ended = False
        self.is_shareable = request.cache.write
        """Whether its blocks may enter the prefix index."""
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.is_announced = False
        """Whether Scheduled has been emitted."""
        options = request.prompt_logprobs
        self.prompt_logprobs_from = None if options is None else max(options.start, 1)
        """First prompt position whose logprob is still owed; None: none is."""

    @property
    def is_running(self) -> bool:
        """Whether it holds a slot."""
        return self.stay is not None

    @property
    def num_output_tokens(self) -> int:
        """Settled output tokens, the request's output prefix included."""
        return self.num_known_tokens - self.num_before_output

    @property
    def num_planned_tokens(self) -> int:
        """Positions whose cache entries exist or are planned; 0 while waiting."""
        return 0 if self.stay is None else self.stay.num_planned

    def scheduled(self) -> Scheduled:
        """The event that says it left the queue."""
        assert self.scheduled_at is not None
        return Scheduled(
            num_prompt_tokens=self.request.num_prompt_tokens,
            cached=self._cached(),
            queue_s=max(0.0, self.scheduled_at - self.arrival),
        )

    def finished(
        self, reason: FinishReason, now: float, *, stop_token_id: int | None = None
    ) -> Finished:
        """The terminal event, with what the request cost so far."""
        scheduled = now if self.scheduled_at is None else self.scheduled_at
        first = now if self.first_token_at is None else self.first_token_at
        return Finished(
            reason=reason,
            stop_token_id=stop_token_id,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            cached=self._cached(),
            timings=Timings(
                queue_s=max(0.0, scheduled - self.arrival),
                prefill_s=max(0.0, first - scheduled),
                decode_s=max(0.0, now - first),
            ),
            num_preemptions=self.num_preemptions,
        )

    def _cached(self) -> TierTokens:
        return (("device", self.num_cached_tokens),) if self.num_cached_tokens else ()


class Stay:
    """A sequence's time in one slot: from its admission until it ends or is preempted.

    open: in later plans. settling: tokens of rows in flight still count.

        open, settling --preempt--> settling --last row in flight--> gone
        open, settling --finish, abort, fail, restart--> gone

    Rows of a stay that is gone may be in flight; what they sample is dropped. A decode row
    forwards position `num_planned` and samples the token after it, so with everything in flight
    the sequence has `num_planned + 1` tokens once the given ones are planned.
    """

    __slots__ = (
        "cache",
        "chunk_start",
        "chunk_step",
        "given",
        "is_open",
        "is_settling",
        "last_step",
        "decode_row",
        "max_planned",
        "next_check",
        "num_given",
        "num_planned",
        "plain_until",
        "sequence",
        "slot",
    )

    def __init__(
        self, sequence: SequenceState, decode_row: PlannedRow, cache: SequenceCache, step_id: int
    ) -> None:
        self.sequence = sequence
        self.slot = decode_row.slot
        self.decode_row = decode_row
        """The row of a step that needs no block."""
        self.cache = cache
        self.given: TokenIds = np.frombuffer(bytes(sequence.tokens), "<u4")
        self.num_given = len(self.given)
        """Tokens that the host knew at the start; later ones come from the row itself."""
        self.num_planned = cache.num_cached_tokens
        """Positions forwarded by steps done or planned, and those found cached."""
        self.max_planned = sequence.max_total - 1
        """The last token is sampled but never forwarded."""
        self.plain_until = 0
        """Below this position a step is `decode_row` and nothing else; 0 unless decoding."""
        self.next_check = 0
        """Known tokens at which the request is over, or the cache wants to hear of its output."""
        self._set_next_check(self.num_given)
        self.chunk_step = step_id
        """The newest step with given tokens of this stay."""
        self.chunk_start = self.num_planned
        """The first position that one forwards."""
        self.last_step = step_id
        """The newest step that has a row of this stay."""
        self.is_open = True
        self.is_settling = True

    @property
    def is_prefill(self) -> bool:
        """Whether given tokens are still to be forwarded."""
        return self.num_planned < self.num_given

    def update_plain_until(self) -> None:
        """To be called when blocks came or went, a chunk was planned, or the stay was closed."""
        is_decode = self.is_open and self.num_planned >= self.num_given
        self.plain_until = min(self.cache.capacity, self.max_planned) if is_decode else 0

    def settle_blocks(self) -> None:
        """Hands the cache the tokens settled since the last time, which seals full blocks.

        Every few blocks and at the end: nobody else is likely to want a block of output before.
        """
        sequence, keys = self.sequence, self.cache.keys
        computed = sequence.num_known_tokens - 1
        if computed > self.num_given:
            self.cache.apply(computed, bytes(sequence.tokens[BYTES_PER_ID * keys.num_tokens :]))
            self._set_next_check(computed)

    def _set_next_check(self, computed: int) -> None:
        stride = _SEAL_STRIDE * self.cache.keys.tokens_per_block
        self.next_check = min((computed // stride + 1) * stride + 1, self.sequence.max_total)
