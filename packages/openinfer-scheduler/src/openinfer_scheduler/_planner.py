"""How a step is put together: decode rows, running prefills, then waiting sequences."""

from dataclasses import dataclass, field

import numpy as np

from openinfer_kv_cache import PrefixHit, Reservation
from openinfer_scheduler._admission import Admission
from openinfer_scheduler._plan import PlannedRow, RowStart, StepPlan
from openinfer_scheduler._policy import Policy, checked_order
from openinfer_scheduler._sequence import SequenceState, Stay
from openinfer_scheduler._state import SchedulerState, StepInFlight
from openinfer_scheduler.errors import PolicyError

_MAX_FOLLOWERS = 16
"""Waiting sequences looked past in one plan because a running one computes their prefix."""

_LOOKAHEAD = 3
"""Blocks that a decoding sequence takes beyond the one it needs, while the pool has plenty."""


@dataclass(slots=True, kw_only=True)
class _Draft:
    """The plan being made."""

    step_id: int
    now: float
    budget: int
    """Tokens left."""
    order: list[SequenceState]
    """The running sequences as the policy ranks them."""
    decode_rows: list[PlannedRow] = field(default_factory=list)
    decode_stays: list[Stay] = field(default_factory=list)
    prefill_rows: list[PlannedRow] = field(default_factory=list)
    prefill_stays: list[Stay] = field(default_factory=list)
    starts: list[RowStart] = field(default_factory=list)
    started: list[Stay] = field(default_factory=list)
    is_full: bool = False
    """Whether some running sequence found no blocks."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""
        return not self.decode_rows and not self.prefill_rows


class Planner:
    """Builds one plan at a time over the scheduler's state.

    The running sequences are walked in the policy's order. A row that finds no block preempts
    sequences after it, so the first always gets what it needs: at once, or, where the victim is
    in flight, when that step has completed; until then it sits out. A prefill that sat out comes
    before the decode rows behind it in the next plan, so that they cannot starve it.
    """

    def __init__(self, state: SchedulerState, policy: Policy) -> None:
        self._state = state
        self._policy = policy
        self._admission = Admission(state)
        no_blocks = tuple(np.empty(0, np.int32) for _ in state.cache.groups)
        self._decode_rows = [
            PlannedRow(
                slot=slot, num_tokens=1, token_ids=None, new_block_ids=no_blocks, is_sampled=True
            )
            for slot in range(state.config.max_num_seqs)
        ]
        self._starved: Stay | None = None
        """A prefill that found no blocks in the last plan."""
        self._lookahead = _LOOKAHEAD * max(group.tokens_per_block for group in state.cache.groups)
        self._roomy = 2 * _LOOKAHEAD * state.config.max_num_seqs

    def plan(self, now: float) -> StepInFlight | None:
        """The next step, or None if nothing can run."""
        state = self._state
        step_id = state.next_step
        draft = _Draft(
            step_id=step_id,
            now=now,
            budget=state.config.max_num_batched_tokens,
            # A copy, because preemption changes `running`, which a policy may return as it is.
            order=list(checked_order(self._policy, state.running, now)),
        )
        state.cache.begin_step(step_id)
        try:
            self._plan_running(draft)
            if self._may_admit(draft):
                self._plan_waiting(draft)
        except BaseException:  # whatever a policy raises must not leave half a plan behind
            state.in_flight.append(self._finished(draft))
            state.revert_newest()
            raise
        if draft.is_empty and (state.in_flight or not state.slots.has_over):
            state.cache.revert_step(step_id)
            return None
        step = self._finished(draft)
        state.in_flight.append(step)
        state.next_step = step_id + 1
        return step

    def _plan_running(self, draft: _Draft) -> None:
        step_id = draft.step_id
        add_row, add_stay = draft.decode_rows.append, draft.decode_stays.append
        prefills: list[tuple[int, Stay]] = []
        starved, self._starved = self._starved, None
        for rank, sequence in enumerate(draft.order):
            stay = sequence.stay
            if stay is None:
                continue
            position = stay.num_planned
            if position < stay.plain_until:
                add_row(stay.decode_row)
            elif not stay.is_open:
                continue
            elif position < stay.num_given:
                if stay is starved:
                    behind = len(draft.order) - rank - 1
                    self._plan_chunk(draft, rank, stay, spare=len(draft.decode_rows) + behind)
                else:
                    prefills.append((rank, stay))
                continue
            elif position < stay.max_planned:
                row = self._grown_row(draft, rank, stay)
                if row is None:
                    continue
                add_row(row)
            else:
                continue
            stay.num_planned = position + 1
            stay.last_step = step_id
            add_stay(stay)
        draft.budget -= len(draft.decode_rows)
        for rank, stay in prefills:
            if stay.is_open:
                self._plan_chunk(draft, rank, stay, spare=0)

    def _grown_row(self, draft: _Draft, rank: int, stay: Stay) -> PlannedRow | None:
        """The decode row of a position that has no block yet; None where there is no room."""
        end = stay.num_planned + 1
        if self._state.cache.num_available_blocks > self._roomy:
            end = min(end + self._lookahead, stay.max_planned)
        reservation = self._reserve(draft, rank, stay, end)
        if reservation is None:
            return None
        stay.update_plain_until()
        return PlannedRow(
            slot=stay.slot,
            num_tokens=1,
            token_ids=None,
            new_block_ids=reservation.new_block_ids,
            is_sampled=True,
        )

    def _plan_chunk(self, draft: _Draft, rank: int, stay: Stay, *, spare: int) -> None:
        """Adds a running prefill's next chunk, leaving `spare` tokens of the budget."""
        num_tokens = self._chunk_size(stay.sequence, draft.budget - spare, stay.num_planned)
        if not num_tokens:
            return
        reservation = self._reserve(draft, rank, stay, stay.num_planned + num_tokens)
        if reservation is not None:
            self._add_chunk(draft, stay, num_tokens, reservation)

    def _may_admit(self, draft: _Draft) -> bool:
        """Whether waiting sequences are looked at.

        Not while a running one is short of blocks or a preempted one is on its way back to the
        queue: nothing overtakes those.
        """
        state = self._state
        if not state.waiting or not state.slots.num_free or not draft.budget:
            return False
        return not draft.is_full and not state.settling

    def _plan_waiting(self, draft: _Draft) -> None:
        state = self._state
        # Admission changes the queue, and with it an order that is the same list.
        candidates = list(checked_order(self._policy, state.waiting.sequences, draft.now))
        num_followers = 0
        for sequence in candidates:
            if not state.slots.num_free or not draft.budget:
                return
            hit = self._admission.try_match(sequence)
            if hit is None:
                num_followers += 1
                if num_followers == _MAX_FOLLOWERS:
                    return
            elif not self._try_admit(draft, sequence, hit):
                return

    def _try_admit(self, draft: _Draft, sequence: SequenceState, hit: PrefixHit) -> bool:
        state = self._state
        try:
            num_tokens = self._chunk_size(sequence, draft.budget, hit.num_tokens)
        except BaseException:
            hit.close()
            raise
        admitted = self._admission.try_open(sequence, hit, num_tokens)
        if admitted is None:
            return False
        cache, reservation, cached_block_ids = admitted
        row = self._decode_rows[state.slots.take()]
        stay = Stay(sequence, row, cache, draft.step_id)
        state.start(sequence, stay, draft.now)
        draft.started.append(stay)
        draft.starts.append(
            RowStart(
                slot=stay.slot,
                request=sequence.request,
                token_ids=stay.given,
                num_output_tokens=sequence.num_output_tokens,
                num_cached_tokens=stay.num_planned,
                block_ids=cached_block_ids,
                seed=sequence.seed,
            )
        )
        self._add_chunk(draft, stay, num_tokens, reservation)
        return True

    def _chunk_size(self, sequence: SequenceState, budget: int, num_planned: int) -> int:
        """Tokens of the next chunk; 0 where the budget is spent."""
        limit = min(budget, sequence.num_known_tokens - num_planned)
        cap = self._state.config.max_chunk_tokens
        if cap is not None:
            limit = min(limit, cap)
        if limit < 1:
            return 0
        return min(max(self._policy.chunk(sequence, limit), 1), limit)

    def _add_chunk(
        self, draft: _Draft, stay: Stay, num_tokens: int, reservation: Reservation
    ) -> None:
        start = stay.chunk_start = stay.num_planned
        stay.chunk_step = draft.step_id
        end = start + num_tokens
        draft.prefill_rows.append(
            PlannedRow(
                slot=stay.slot,
                num_tokens=num_tokens,
                token_ids=stay.given[start:end],
                new_block_ids=reservation.new_block_ids,
                is_sampled=end == stay.num_given,
            )
        )
        draft.prefill_stays.append(stay)
        draft.budget -= num_tokens
        stay.num_planned = end
        stay.update_plain_until()
        stay.last_step = draft.step_id

    def _reserve(self, draft: _Draft, rank: int, stay: Stay, end: int) -> Reservation | None:
        """Room for the positions below `end`, at the cost of sequences after `rank`; or None."""
        state = self._state
        while True:
            reservation = stay.cache.try_schedule(end)
            if reservation is not None:
                return reservation
            draft.is_full = True
            if state.has_blocks_coming:
                break
            candidates = [
                s
                for s in draft.order[rank + 1 :]
                if s.stay is not None and s.stay.is_open and s.stay.last_step != draft.step_id
            ]
            if candidates:
                self._preempt_one_of(candidates)
            elif self._is_stuck(draft):
                # Alone and still short: it holds duplicates of blocks whose other holders are gone,
                # and those blocks too. Started again it takes the place of blocks nobody holds, and
                # then its lifetime is known to fit.
                state.preempt(stay)
                return None
            else:
                break
        if stay.is_prefill and self._starved is None:
            self._starved = stay
        return None

    def _is_stuck(self, draft: _Draft) -> bool:
        return not self._state.in_flight and not draft.decode_rows and not draft.prefill_rows

    def _preempt_one_of(self, candidates: list[SequenceState]) -> None:
        victim = self._policy.victim(candidates)
        if not any(victim is candidate for candidate in candidates):
            raise PolicyError("victim() returned a sequence that is no candidate")
        assert victim.stay is not None
        self._state.preempt(victim.stay)

    def _finished(self, draft: _Draft) -> StepInFlight:
        state = self._state
        rows = draft.decode_rows + draft.prefill_rows
        stays = draft.decode_stays + draft.prefill_stays
        positions = {}
        num_decode = len(draft.decode_rows)
        for index, stay in enumerate(draft.prefill_stays):
            if stay.sequence.prompt_logprobs_from is not None:
                row = draft.prefill_rows[index]
                positions[num_decode + index] = stay.num_planned - row.num_tokens
        plan = StepPlan(
            step_id=draft.step_id,
            ends=state.slots.announce(),
            starts=tuple(draft.starts),
            rows=tuple(rows),
        )
        return StepInFlight(
            plan=plan, stays=stays, started=draft.started, prompt_positions=positions
        )
