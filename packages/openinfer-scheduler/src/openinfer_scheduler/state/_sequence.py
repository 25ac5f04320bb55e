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
from openinfer_scheduler._step_plan import PlannedRow, TokenIds
from openinfer_scheduler.state._prefix_probe import BYTES_PER_ID, PrefixProbe

SEAL_STRIDE = 32
"""Blocks of output tokens that are sealed together."""


class SequenceState:
    """One live request, waiting or running. Policies read it; only the core writes it.

    Attributes:
        request: as it came.
        arrival: monotonic seconds.
        arrival_index: number of the request in order of `Scheduler.add`; unique.
        seed: the request's seed, or the one drawn for it.
        num_cached_tokens: prompt tokens found cached when it was first scheduled.
        num_preemptions: how often it lost its blocks.
        is_loading: whether a tier is still bringing blocks of its prefix; it does not start then.
    """

    __slots__ = (
        "arrival",
        "arrival_index",
        "cached_by_tier",
        "first_token_at",
        "hit_estimate",
        "hit_stands_until",
        "is_announced",
        "is_by_itself",
        "is_loading",
        "keys",
        "max_total",
        "num_before_output",
        "num_cached_tokens",
        "num_preemptions",
        "probe",
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
        probe: PrefixProbe | None = None,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival = arrival
        self.arrival_index = arrival_index
        self.seed = seed
        self.tokens = bytearray(request.prompt_token_ids)
        """u32 column of the known tokens."""
        self.num_before_output = request.num_prompt_tokens - request.num_output_prefix
        self.max_total = max_total
        """Known tokens at which the request has its full length."""
        self.stop_ids = stop_ids
        self.stop_from = self.num_before_output + request.stop.min_tokens
        """A stop id counts only where more tokens than this are known, itself included."""
        self.keys: BlockKeys | None = None
        self.probe = probe
        self.hit_estimate = 0
        self.hit_stands_until = -1
        self.is_loading = False
        self.stay: Stay | None = None
        self.is_by_itself = False
        """Whether it shares nothing any more, because it ran short of blocks all alone."""
        self.num_cached_tokens = 0
        self.cached_by_tier: TierTokens = ()
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
    def column(self) -> bytes:
        """u32 column of the known tokens; no copy where they are the request's own."""
        prompt = self.request.prompt_token_ids
        return prompt if len(prompt) == len(self.tokens) else bytes(self.tokens)

    @property
    def num_known_tokens(self) -> int:
        """Prompt and settled output tokens."""
        return len(self.tokens) // BYTES_PER_ID

    @property
    def num_output_tokens(self) -> int:
        """Settled output tokens, the request's output prefix included."""
        return self.num_known_tokens - self.num_before_output

    @property
    def num_planned_tokens(self) -> int:
        """Positions whose cache entries exist or are planned; 0 while waiting."""
        return 0 if self.stay is None else self.stay.num_planned

    @property
    def num_hit_tokens(self) -> int:
        """Of a waiting sequence: leading tokens that the prefix cache holds for it.

        An estimate that costs little: it may be some plans old, and is 0 before the first one.
        """
        if self.stay is not None or self.probe is None:
            return 0
        return self.probe.estimate(self)

    @property
    def num_uncached_tokens(self) -> int:
        """Known tokens still to be forwarded, cached prefixes left out (see `num_hit_tokens`)."""
        stay = self.stay
        if stay is None:
            num_hit = 0 if self.probe is None else self.probe.estimate(self)
            return len(self.tokens) // BYTES_PER_ID - num_hit
        num_left = stay.num_given - stay.num_planned
        return num_left if num_left > 0 else 0

    @property
    def is_shareable(self) -> bool:
        """Whether its blocks may enter the prefix index."""
        return self.request.cache.write and not self.is_by_itself

    @property
    def max_hit_tokens(self) -> int | None:
        """Leading tokens that may come from the cache; None: all of them."""
        if not self.request.cache.read or self.is_by_itself:
            return 0
        owed = self.prompt_logprobs_from
        return None if owed is None else owed - 1

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
        return self.cached_by_tier if self.num_cached_tokens else ()


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
        "adapter_uid",
        "decode_row",
        "max_planned",
        "next_check",
        "num_charged",
        "num_given",
        "num_keyed",
        "num_planned",
        "num_unforwarded",
        "plain_until",
        "request_id",
        "sequence",
        "slot",
        "stop_ids",
        "stride",
        "surplus_until",
        "tokens",
    )

    def __init__(
        self, sequence: SequenceState, decode_row: PlannedRow, cache: SequenceCache, step_id: int
    ) -> None:
        self.sequence = sequence
        self.slot = decode_row.slot
        adapter = sequence.request.adapter
        self.adapter_uid = None if adapter is None else adapter.uid
        self.decode_row = decode_row
        """The row of a step that needs no block."""
        self.stride = decode_row.num_tokens
        """Positions of such a row: 1 and the drafts."""
        self.cache = cache
        self.given: TokenIds = np.frombuffer(sequence.column, "<u4")
        self.num_given = len(self.given)
        """Tokens that the host knew at the start, or has forced since; others come from the row
        itself."""
        self.num_keyed = self.num_given
        """Of them those known at the start, whose blocks are sealed when they are planned."""
        self.num_unforwarded = 0
        """Forced tokens at the end of the known ones, until one is sampled behind them."""
        self.surplus_until = 0
        """What rows of steps up to this one sample has been forced in the meantime."""
        self.num_planned = cache.num_cached_tokens
        """Positions forwarded by steps done or planned, and those found cached. Drafts in flight
        count as accepted, until `apply` knows."""
        self.num_charged = self.num_planned
        """Positions that the policy was told of, or need not be."""
        self.max_planned = sequence.max_total - 1
        """The last token is sampled but never forwarded."""
        self.plain_until = 0
        """Below this position a step is `decode_row` and nothing else; 0 unless decoding."""
        self.request_id = sequence.request_id
        self.tokens = sequence.tokens
        self.stop_ids = sequence.stop_ids
        self.next_check = 0
        """Bytes of the known tokens' column at which the next token may end the request, or the
        cache wants to hear of its output; 0 before the first token of the stay, and once the stay
        is closed."""
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

    @property
    def is_through(self) -> bool:
        """Whether it has all the rows it needs."""
        return self.num_planned >= self.max_planned

    def update_plain_until(self) -> None:
        """To be called when blocks came or went, a chunk was planned, or the stay was closed."""
        if self.is_open and self.num_planned >= self.num_given:
            self.plain_until = min(self.cache.capacity, self.max_planned) - self.stride + 1
        else:
            self.plain_until = 0

    def take_as_given(self, last_completed: int) -> None:
        """To be called when tokens were forced: the next rows forward them like a prompt."""
        self.given = np.frombuffer(bytes(self.tokens), "<u4")
        self.num_given = len(self.given)
        self.plain_until = self.next_check = 0
        if self.last_step > last_completed:
            self.surplus_until = self.last_step

    def settle_blocks(self) -> None:
        """Hands the cache the tokens settled since the last time, which seals full blocks.

        Every few blocks and at the end: nobody else is likely to want a block of output before.
        """
        sequence, keys = self.sequence, self.cache.keys
        computed = sequence.num_known_tokens - 1 - self.num_unforwarded
        if computed > self.num_keyed:
            self.cache.apply(computed, bytes(sequence.tokens[BYTES_PER_ID * keys.num_tokens :]))
        stride = SEAL_STRIDE * keys.tokens_per_block
        num_known = min((computed // stride + 1) * stride + 1, sequence.max_total)
        self.next_check = BYTES_PER_ID * (num_known - 1)
