"""The plan being built, and the sizes and rows that all parts of planning use."""

from dataclasses import dataclass, field

import numpy as np

from openinfer_contract import Sampling
from openinfer_kv_cache import BlockCopy, Reservation
from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler._step_plan import PlannedRow, RowStart, StepPlan
from openinfer_scheduler.state._scheduler_state import SchedulerState, StepInFlight
from openinfer_scheduler.state._sequence import SequenceState, SlotTenancy


@dataclass(slots=True, kw_only=True)
class PlanBuilder:
    """The plan being built."""

    step_id: int
    now: float
    budget: int
    """Tokens that may still be added."""
    order: list[SequenceState] = field(default_factory=list)
    """The running sequences in the policy's order; empty if all of them decode and find blocks."""
    decode_rows: list[PlannedRow] = field(default_factory=list)
    decode_tenancies: list[SlotTenancy] = field(default_factory=list)
    prefill_rows: list[PlannedRow] = field(default_factory=list)
    prefill_tenancies: list[SlotTenancy] = field(default_factory=list)
    starts: list[RowStart] = field(default_factory=list)
    started: list[SlotTenancy] = field(default_factory=list)
    copies_before: list[BlockCopy] = field(default_factory=list)
    copies_after: list[BlockCopy] = field(default_factory=list)
    has_plain_rows: bool = False
    """Whether decode rows that need no block are still to be added."""
    is_short_of_blocks: bool = False
    """Whether a running sequence found no blocks."""
    num_partial: int = 0
    """Number of sequences whose prompt is still incomplete after this plan."""

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no rows."""
        return not (self.decode_rows or self.prefill_rows or self.has_plain_rows)

    def add_decode_rows(self, tenancies: list[SlotTenancy], rows: list[PlannedRow]) -> None:
        """Adds decode rows, one for each tenancy."""
        step_id = self.step_id
        for tenancy, row in zip(tenancies, rows, strict=True):
            tenancy.num_planned += row.num_tokens
            tenancy.last_step = step_id
        self.decode_rows += rows
        self.decode_tenancies += tenancies

    def grown_row(
        self, tenancy: SlotTenancy, num_tokens: int, reservation: Reservation
    ) -> PlannedRow:
        """Returns a decode row that takes blocks; it is added by `add_decode_rows`."""
        tenancy.update_plain_until()
        self.add_copies(reservation)
        return PlannedRow(
            slot=tenancy.slot,
            num_tokens=num_tokens,
            token_ids=None,
            new_block_ids=reservation.new_block_ids,
            is_sampled=True,
            needs_mask=tenancy.decode_row.needs_mask,
        )

    def add_chunk(self, tenancy: SlotTenancy, num_tokens: int, reservation: Reservation) -> None:
        """Adds the next `num_tokens` host tokens of a sequence."""
        start = tenancy.num_planned
        end = start + num_tokens
        is_sampled = end == tenancy.num_host_tokens
        self.prefill_rows.append(
            PlannedRow(
                slot=tenancy.slot,
                num_tokens=num_tokens,
                token_ids=tenancy.host_token_ids[start:end],
                new_block_ids=reservation.new_block_ids,
                is_sampled=is_sampled,
                needs_mask=is_sampled and tenancy.decode_row.needs_mask,
            )
        )
        self.prefill_tenancies.append(tenancy)
        self.add_copies(reservation)
        self.budget -= num_tokens
        tenancy.last_step = self.step_id
        tenancy.num_planned = end
        tenancy.update_plain_until()

    def add_copies(self, reservation: Reservation) -> None:
        """Adds the state copies of a row's reservation."""
        before, after = reservation.copies
        self.copies_before += before
        self.copies_after += after

    def build(self, ends: tuple[int, ...]) -> StepInFlight:
        """Returns the finished plan.

        Args:
            ends: slots whose end the plan announces.
        """
        num_decode = len(self.decode_rows)
        prompt_positions = {}
        num_prefill_tokens = 0
        for index, (row, tenancy) in enumerate(
            zip(self.prefill_rows, self.prefill_tenancies, strict=True), num_decode
        ):
            num_prefill_tokens += row.num_tokens
            if tenancy.sequence.prompt_logprobs_from is not None:
                prompt_positions[index] = tenancy.num_planned - row.num_tokens
        plan = StepPlan(
            step_id=self.step_id,
            ends=ends,
            starts=tuple(self.starts),
            rows=(*self.decode_rows, *self.prefill_rows),
            copies_before=tuple(self.copies_before),
            copies_after=tuple(self.copies_after),
        )
        return StepInFlight(
            plan=plan,
            tenancies=self.decode_tenancies + self.prefill_tenancies,
            started=self.started,
            prompt_positions=prompt_positions,
            planned_at=self.now,
            num_decode=num_decode,
            num_prefill_tokens=num_prefill_tokens,
        )


class ChunkSizes:
    """Decides how many tokens a sequence's next prefill chunk takes."""

    def __init__(self, state: SchedulerState, policy: GuardedPolicy) -> None:
        self._cap = state.config.max_chunk_tokens
        self._cache = state.cache
        self._policy = policy

    def of(self, sequence: SequenceState, budget: int, num_planned: int) -> int:
        """Returns the tokens of the next chunk; 0 if the budget is spent."""
        limit = min(budget, sequence.num_known_tokens - num_planned)
        if self._cap is not None:
            limit = min(limit, self._cap)
        if limit < 1:
            return 0
        num_tokens = min(max(self._policy.chunk(sequence, limit), 1), limit)
        keys = sequence.keys
        assert keys is not None, "its prefix was looked up"
        return self._cache.chunk_end(keys, num_planned, num_planned + num_tokens) - num_planned


class DecodeRows:
    """The decode rows of each slot that need no block. Each is made once, then reused."""

    def __init__(self, state: SchedulerState) -> None:
        self._num_drafts = state.config.num_draft_tokens
        self._no_blocks = tuple(np.empty(0, np.int32) for _ in state.cache.groups)
        self._rows: dict[tuple[int, int, bool], PlannedRow] = {}

    def of(self, slot: int, sequence: SequenceState) -> PlannedRow:
        """Returns the decode row for a sequence that takes the slot."""
        request = sequence.request
        needs_mask = request.grammar is not None
        has_drafts = (
            not needs_mask
            and request.speculate is not False
            and not _depends_on_output(request.sampling)
        )
        num_tokens = 1 + self._num_drafts if has_drafts else 1
        key = slot, num_tokens, needs_mask
        if key not in self._rows:
            self._rows[key] = PlannedRow(
                slot=slot,
                num_tokens=num_tokens,
                token_ids=None,
                new_block_ids=self._no_blocks,
                is_sampled=True,
                needs_mask=needs_mask,
            )
        return self._rows[key]


def _depends_on_output(sampling: Sampling) -> bool:
    """Returns whether sampling depends on earlier output, which is not settled for drafts."""
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.bad_words
    )
