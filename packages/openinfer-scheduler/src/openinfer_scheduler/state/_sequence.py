"""One live request, and its tenancy of a slot."""

from typing import Protocol

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

BYTES_PER_ID = 4
"""Bytes of one token id in a column of little-endian u32."""

SEAL_STRIDE = 32
"""Blocks of output tokens that are sealed together."""


class HitEstimator(Protocol):
    """Estimates prefix hits of waiting sequences."""

    def estimate(self, sequence: "SequenceState", /) -> int:
        """Returns leading tokens of the sequence that the prefix cache holds."""
        ...


class SequenceState:
    """One live request, waiting or running. Policies read it; only the scheduler writes it.

    Attributes:
        request: the request as it was added.
        arrival: time of arrival, monotonic seconds.
        arrival_index: number of the request in order of `Scheduler.add`; unique.
        seed: the request's seed, or the one drawn for it.
        num_cached_tokens: prompt tokens found cached when it was first started.
        num_preemptions: how often it was preempted.
        is_loading: whether a tier is loading blocks of its prefix; it cannot start until then.
    """

    __slots__ = (
        "arrival",
        "arrival_index",
        "cached_by_tier",
        "first_token_at",
        "hit_estimate",
        "hit_valid_until_step",
        "is_announced",
        "is_loading",
        "is_unshared",
        "keys",
        "max_total",
        "num_cached_tokens",
        "num_preemptions",
        "output_start",
        "probe",
        "prompt_logprobs_from",
        "request",
        "request_id",
        "scheduled_at",
        "seed",
        "stop_ids",
        "stop_ids_from",
        "tenancy",
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
        probe: HitEstimator | None = None,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival = arrival
        self.arrival_index = arrival_index
        self.seed = seed
        self.tokens = bytearray(request.prompt_token_ids)
        """Known tokens, prompt and output, as a u32 column."""
        self.output_start = request.num_prompt_tokens - request.num_output_prefix
        """Position of the first output token."""
        self.max_total = max_total
        """Number of known tokens at which the request ends by length."""
        self.stop_ids = stop_ids
        self.stop_ids_from = self.output_start + request.stop.min_tokens
        """Number of known tokens up to which a stop id does not end the request; it counts
        itself."""
        self.keys: BlockKeys | None = None
        self.probe = probe
        self.hit_estimate = 0
        self.hit_valid_until_step = -1
        self.is_loading = False
        self.tenancy: SlotTenancy | None = None
        self.is_unshared = False
        """Whether it neither reads nor writes the prefix cache any more, because it had the pool to
        itself and still ran out of blocks."""
        self.num_cached_tokens = 0
        self.cached_by_tier: TierTokens = ()
        self.num_preemptions = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.is_announced = False
        """Whether Scheduled has been emitted."""
        options = request.prompt_logprobs
        self.prompt_logprobs_from = None if options is None else max(options.start, 1)
        """First prompt position whose logprob was not delivered yet; None if none is owed."""

    @property
    def is_running(self) -> bool:
        """Whether it holds a slot."""
        return self.tenancy is not None

    @property
    def token_column(self) -> bytes:
        """Known tokens as a u32 column; not copied while they are the request's prompt alone."""
        prompt = self.request.prompt_token_ids
        return prompt if len(prompt) == len(self.tokens) else bytes(self.tokens)

    @property
    def num_known_tokens(self) -> int:
        """Number of prompt and settled output tokens."""
        return len(self.tokens) // BYTES_PER_ID

    @property
    def num_output_tokens(self) -> int:
        """Number of settled output tokens, including the request's output prefix."""
        return self.num_known_tokens - self.output_start

    @property
    def num_hit_tokens(self) -> int:
        """Leading tokens of a waiting sequence that the prefix cache holds.

        A cheap estimate: it may be some plans old, and is 0 before the first look-up.
        """
        if self.tenancy is not None or self.probe is None:
            return 0
        return self.probe.estimate(self)

    @property
    def num_uncached_tokens(self) -> int:
        """Number of known tokens still to be forwarded, without cached ones (`num_hit_tokens`)."""
        tenancy = self.tenancy
        if tenancy is None:
            num_hit = 0 if self.probe is None else self.probe.estimate(self)
            return len(self.tokens) // BYTES_PER_ID - num_hit
        num_rest = tenancy.num_host_tokens - tenancy.num_planned
        return num_rest if num_rest > 0 else 0

    @property
    def is_shareable(self) -> bool:
        """Whether its blocks may enter the prefix index."""
        return self.request.cache.write and not self.is_unshared

    @property
    def max_hit_tokens(self) -> int | None:
        """Upper bound on leading tokens that may come from the cache; None: no bound."""
        if not self.request.cache.read or self.is_unshared:
            return 0
        owed = self.prompt_logprobs_from
        return None if owed is None else owed - 1

    def scheduled(self) -> Scheduled:
        """Returns the event that says that the request left the queue."""
        assert self.scheduled_at is not None
        return Scheduled(
            num_prompt_tokens=self.request.num_prompt_tokens,
            cached=self._cached(),
            queue_s=max(0.0, self.scheduled_at - self.arrival),
        )

    def finished(
        self, reason: FinishReason, now: float, *, stop_token_id: int | None = None
    ) -> Finished:
        """Returns the terminal event, with token counts and timings."""
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


class SlotTenancy:
    """A sequence's time in one slot, from its admission until it ends or is preempted.

    A tenancy is *open* while later plans may have rows of it, and *settling* while the tokens of
    its rows in flight still count:

        open, settling --preempt--> settling --last row in flight applied--> over
        open, settling --finish, abort, fail, restart--> over

    A tenancy that is over may have rows in flight; their tokens are dropped. A decode row forwards
    position `num_planned` and samples the token after it. So with all steps in flight applied, the
    sequence has `num_planned + 1` tokens, once its host tokens are planned.

    Host tokens are those that the host gives to the executor: tokens known at the start and forced
    tokens. The executor itself remembers the token that a row sampled last.
    """

    __slots__ = (
        "adapter_uid",
        "cache",
        "decode_row",
        "host_token_ids",
        "ignore_samples_until_step",
        "is_open",
        "is_settling",
        "last_step",
        "max_planned",
        "next_check",
        "num_charged",
        "num_host_tokens",
        "num_keyed_tokens",
        "num_planned",
        "num_unforwarded",
        "plain_until",
        "request_id",
        "sequence",
        "slot",
        "stop_ids",
        "stride",
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
        """The row of a decode step that needs no new block."""
        self.stride = decode_row.num_tokens
        """Positions of a decode row: 1 plus the number of drafts."""
        self.cache = cache
        self.host_token_ids: TokenIds = np.frombuffer(sequence.token_column, "<u4")
        self.num_host_tokens = len(self.host_token_ids)
        self.num_keyed_tokens = self.num_host_tokens
        """Tokens known at the start. Their blocks are sealed when they are planned; blocks of later
        tokens are sealed by `settle_blocks`."""
        self.num_unforwarded = 0
        """Forced tokens at the end of the known ones, until a token is sampled after them."""
        self.ignore_samples_until_step = 0
        """Steps with an id up to this one were planned before tokens were forced; their samples are
        ignored."""
        self.num_planned = cache.num_cached_tokens
        """Positions found cached or forwarded by steps that are done or in flight. Drafts in flight
        count as accepted until `apply` corrects that."""
        self.num_charged = self.num_planned
        """Positions that the policy was already charged for, and cached positions, which are
        free."""
        self.max_planned = sequence.max_total - 1
        """Upper bound on `num_planned`: the last token is sampled but never forwarded."""
        self.plain_until = 0
        """Below this position, the row of every step is `decode_row` itself; 0 unless decoding."""
        self.request_id = sequence.request_id
        self.tokens = sequence.tokens
        self.stop_ids = sequence.stop_ids
        self.next_check = 0
        """Length of `tokens` in bytes from which a new token needs a closer look: it may end the
        request, or output blocks are due to be sealed. 0 before the first token of the tenancy and
        after its end."""
        self.last_step = step_id
        """The newest step that has a row of this tenancy."""
        self.is_open = True
        self.is_settling = True

    @property
    def is_prefill(self) -> bool:
        """Whether host tokens are still to be forwarded."""
        return self.num_planned < self.num_host_tokens

    def update_plain_until(self) -> None:
        """Recomputes `plain_until` after blocks were added, a chunk was planned, or an end."""
        if self.is_open and self.num_planned >= self.num_host_tokens:
            self.plain_until = min(self.cache.capacity, self.max_planned) - self.stride + 1
        else:
            self.plain_until = 0

    def reload_host_tokens(self, last_completed: int) -> None:
        """Makes forced tokens host tokens, so that the next rows forward them like a prompt."""
        self.host_token_ids = np.frombuffer(bytes(self.tokens), "<u4")
        self.num_host_tokens = len(self.host_token_ids)
        self.plain_until = self.next_check = 0
        if self.last_step > last_completed:
            self.ignore_samples_until_step = self.last_step

    def settle_blocks(self) -> None:
        """Passes the tokens settled since the last call to the cache, which seals full blocks.

        Called every `SEAL_STRIDE` blocks and at the end, because few requests share a block of
        output before its sequence has ended.
        """
        sequence, keys = self.sequence, self.cache.keys
        computed = sequence.num_known_tokens - 1 - self.num_unforwarded
        if computed > self.num_keyed_tokens:
            self.cache.apply(computed, bytes(sequence.tokens[BYTES_PER_ID * keys.num_tokens :]))
        stride = SEAL_STRIDE * keys.tokens_per_block
        num_known = min((computed // stride + 1) * stride + 1, sequence.max_total)
        self.next_check = BYTES_PER_ID * (num_known - 1)
