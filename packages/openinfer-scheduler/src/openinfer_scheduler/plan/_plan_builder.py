"""The plan being made, and what every part of the planner does to it."""

from dataclasses import dataclass, field

import numpy as np

from openinfer_kv_cache import BlockCopy, Reservation
from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler._step_plan import PlannedRow, RowStart
from openinfer_scheduler.plan._steady import SteadyPlan
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState, Stay


@dataclass(slots=True, kw_only=True)
class Draft:
    """The plan being made."""

    step_id: int
    now: float
    budget: int
    """Tokens left."""
    order: list[SequenceState] = field(default_factory=list)
    """The running sequences as the policy ranks them; none where all rows are steady."""
    decode_rows: list[PlannedRow] = field(default_factory=list)
    decode_stays: list[Stay] = field(default_factory=list)
    prefill_rows: list[PlannedRow] = field(default_factory=list)
    prefill_stays: list[Stay] = field(default_factory=list)
    starts: list[RowStart] = field(default_factory=list)
    started: list[Stay] = field(default_factory=list)
    copies_before: list[BlockCopy] = field(default_factory=list)
    copies_after: list[BlockCopy] = field(default_factory=list)
    steady: SteadyPlan | None = None
    """The decode rows, where all sequences that run only decode."""
    has_plain_rows: bool = False
    """Whether decode rows that need no block are still to be added."""
    is_full: bool = False
    """Whether some running sequence found no blocks."""
    num_partial: int = 0
    """Sequences whose prompt is not through with this plan."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""
        return not (self.decode_rows or self.prefill_rows or self.has_plain_rows)

    def add_chunk(self, stay: Stay, num_tokens: int, reservation: Reservation) -> None:
        """Adds the next `num_tokens` given tokens of a stay."""
        start = stay.chunk_start = stay.num_planned
        stay.chunk_step = stay.last_step = self.step_id
        end = start + num_tokens
        is_sampled = end == stay.num_given
        self.prefill_rows.append(
            PlannedRow(
                slot=stay.slot,
                num_tokens=num_tokens,
                token_ids=stay.given[start:end],
                new_block_ids=reservation.new_block_ids,
                is_sampled=is_sampled,
                needs_mask=is_sampled and stay.decode_row.needs_mask,
            )
        )
        self.prefill_stays.append(stay)
        self.add_copies(reservation)
        self.budget -= num_tokens
        stay.num_planned = end
        stay.update_plain_until()

    def add_copies(self, reservation: Reservation) -> None:
        """Adds the states that a row's reservation copies."""
        before, after = reservation.copies
        self.copies_before += before
        self.copies_after += after


class ChunkSizes:
    """How many tokens the next prefill chunk takes."""

    def __init__(self, state: SchedulerState, policy: GuardedPolicy) -> None:
        self._cap = state.config.max_chunk_tokens
        self._cache = state.cache
        self._policy = policy

    def of(self, sequence: SequenceState, budget: int, num_planned: int) -> int:
        """Tokens of the next chunk; 0 where the budget is spent."""
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
    """The decode rows of each slot that need no block, made once."""

    def __init__(self, state: SchedulerState) -> None:
        self._num_drafts = state.config.num_draft_tokens
        self._no_blocks = tuple(np.empty(0, np.int32) for _ in state.cache.groups)
        self._rows: dict[tuple[int, int, bool], PlannedRow] = {}

    def of(self, slot: int, sequence: SequenceState) -> PlannedRow:
        """The row of a sequence that takes the slot."""
        request = sequence.request
        needs_mask = request.grammar is not None
        has_drafts = not needs_mask and request.speculate is not False
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
