"""How a step is planned: decode rows, running prefills, then waiting sequences."""

from openinfer_kv_cache import Reservation
from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler._lookahead import num_lookahead_tokens
from openinfer_scheduler.admit._admission import Admission
from openinfer_scheduler.admit._capacity_check import CapacityCheck
from openinfer_scheduler.plan._plan_builder import ChunkSizes, PlanBuilder
from openinfer_scheduler.plan._policy_order import ranked_running
from openinfer_scheduler.plan._prefill_pace import PrefillPace
from openinfer_scheduler.state._scheduler_state import SchedulerState, StepInFlight
from openinfer_scheduler.state._sequence import SlotTenancy


class Planner:
    """Builds plans, one at a time, from the scheduler's state.

    The running sequences are planned in the policy's order. A row that finds no block preempts
    sequences after it, so the first sequence always gets its blocks. If the victim has rows in
    flight, its blocks are free when those steps have completed, and the row in need is left out
    until then. A prefill that was left out is planned before all decode rows that follow it in the
    order, so that they cannot starve it.
    """

    def __init__(
        self,
        state: SchedulerState,
        policy: GuardedPolicy,
        pace: PrefillPace | None,
        capacity: CapacityCheck,
    ) -> None:
        self._state = state
        self._policy = policy
        self._pace = pace
        self._sizes = ChunkSizes(state, policy)
        self._capacity = capacity
        self._admission = Admission(state, policy, self._sizes, capacity)
        self._lookahead = num_lookahead_tokens(state.cache.groups)
        num_ahead = state.cache.num_blocks_for(self._lookahead)
        self._plenty = 2 * num_ahead * state.config.max_num_seqs
        """Available blocks above which decode rows take blocks ahead of need."""
        self._max_stride = 1 + state.config.num_draft_tokens

    def plan(self, now: float) -> StepInFlight | None:
        """Returns the next step, or None if nothing can run."""
        state = self._state
        step_id = state.next_step
        state.probe.begin_plan(step_id)
        builder = PlanBuilder(step_id=step_id, now=now, budget=state.config.max_num_batched_tokens)
        state.cache.begin_step(step_id)
        self._capacity.begin_plan(step_id)
        if not self._try_decode_rows(builder):
            self._plan_in_order(builder)
        self._admission.admit(builder)
        if builder.is_empty and (state.in_flight or not state.slots.has_unannounced_ends):
            state.cache.cancel_step(step_id)
            return None
        step = builder.build(state.slots.take_ends())
        state.in_flight.append(step)
        state.next_step = step_id + 1
        state.accounts.charge(step.tenancies[step.num_decode :])
        return step

    def _try_decode_rows(self, builder: PlanBuilder) -> bool:
        """Adds the rows of running sequences in order of arrival, if all decode and find blocks.

        The policy is not asked for an order then, because every sequence is served.

        Returns:
            False if some sequences are not in the plan: they prefill or found no blocks.
        """
        if self._max_stride > 1:
            return False
        tenancies = [s.tenancy for s in self._state.running if s.tenancy is not None]
        growing = [row for row, t in enumerate(tenancies) if t.num_planned >= t.plain_until]
        if growing:
            if any(tenancies[row].is_prefill for row in growing):
                return False
            tenancies = [t for t in tenancies if t.num_planned < t.max_planned]
            growing = [row for row, t in enumerate(tenancies) if t.num_planned >= t.plain_until]
            if not self._has_blocks_for([tenancies[row] for row in growing]):
                return False
        if not tenancies:
            return False
        rows = [tenancy.decode_row for tenancy in tenancies]
        for num_grown, row in enumerate(growing):
            tenancy = tenancies[row]
            reservation = self._try_grow(tenancy, tenancy.num_planned + 1)
            if reservation is None:  # an optional copy of a state took the last block
                done = growing[:num_grown]
                builder.add_decode_rows([tenancies[i] for i in done], [rows[i] for i in done])
                return False
            rows[row] = builder.grown_row(tenancy, 1, reservation)
        builder.add_decode_rows(tenancies, rows)
        builder.budget -= len(rows)
        self._limit_prefill(builder)
        return True

    def _has_blocks_for(self, growing: list[SlotTenancy]) -> bool:
        """Returns whether each of these decode rows finds the blocks for its next position."""
        num_short = sum(t.cache.num_blocks_short(t.num_planned + 1) for t in growing)
        return num_short <= self._state.cache.num_available_blocks

    def _plan_in_order(self, builder: PlanBuilder) -> None:
        """Adds rows of running sequences in the policy's order, those that need blocks first."""
        state = self._state
        state.accounts.charge_round(state.running, builder.step_id)
        builder.order = ranked_running(self._policy, state, builder.now)
        tenancies = [
            sequence.tenancy
            for sequence in builder.order
            if sequence.tenancy is not None and sequence.tenancy.last_step != builder.step_id
        ]
        plain = [each for each in tenancies if each.num_planned < each.plain_until]
        builder.has_plain_rows = bool(plain)
        prefills: list[tuple[int, SlotTenancy]] = []
        if len(plain) < len(tenancies):
            prefills = self._plan_growing(builder)
            if builder.is_short_of_blocks:
                plain = [tenancy for tenancy in plain if tenancy.is_open]
        builder.add_decode_rows(plain, [tenancy.decode_row for tenancy in plain])
        builder.has_plain_rows = False
        builder.budget -= sum([row.num_tokens for row in builder.decode_rows])
        self._limit_prefill(builder)
        for rank, tenancy in prefills:
            if tenancy.is_open:
                self._plan_chunk(builder, rank, tenancy, spare=0)
                builder.num_partial += tenancy.is_prefill

    def _limit_prefill(self, builder: PlanBuilder) -> None:
        """Limits the budget to the prefill tokens allowed beside decode rows."""
        if self._pace is not None and builder.decode_rows:
            taken = sum(row.num_tokens for row in builder.prefill_rows)
            builder.budget = min(builder.budget, max(0, self._pace.max_tokens - taken))

    def _plan_growing(self, builder: PlanBuilder) -> list[tuple[int, SlotTenancy]]:
        """Adds decode rows that need blocks, in order; returns the prefills with their ranks."""
        prefills: list[tuple[int, SlotTenancy]] = []
        starved, self._state.starved_prefill = self._state.starved_prefill, None
        for rank, sequence in enumerate(builder.order):
            tenancy = sequence.tenancy
            # An earlier row may have preempted this sequence since `order` was read, even if it
            # needs no blocks itself.
            if tenancy is None or not tenancy.is_open or tenancy.last_step == builder.step_id:
                continue
            if tenancy.num_planned < tenancy.plain_until:
                continue
            if not tenancy.is_prefill:
                if tenancy.num_planned < tenancy.max_planned:
                    self._add_grown(builder, rank, tenancy)
            elif tenancy is starved:
                self._plan_starved(builder, rank, tenancy)
            else:
                prefills.append((rank, tenancy))
        return prefills

    def _plan_starved(self, builder: PlanBuilder, rank: int, tenancy: SlotTenancy) -> None:
        """Adds a chunk of a prefill that the last plan left out, before the decode rows of others.

        Leaves enough of the token budget for the decode rows of all others.
        """
        others = (len(builder.order) - 1) * self._max_stride
        budget = builder.budget
        if self._pace is not None:
            builder.budget = min(budget, others + self._pace.max_tokens)
        held_back = budget - builder.budget
        self._plan_chunk(builder, rank, tenancy, spare=others)
        builder.budget += held_back
        builder.num_partial += tenancy.is_open and tenancy.is_prefill

    def _add_grown(self, builder: PlanBuilder, rank: int, tenancy: SlotTenancy) -> None:
        """Adds a decode row whose positions have no block yet, if blocks can be found."""
        start = tenancy.num_planned
        num_tokens = min(tenancy.stride, tenancy.max_planned - start)
        reservation = self._try_grow(tenancy, start + num_tokens)
        if reservation is None:  # no sequence is preempted for drafts
            num_tokens = 1
            end = start + 1
            reservation = self._reserve(builder, rank, tenancy, end, reach=_reach(tenancy, end))
        if reservation is not None:
            row = builder.grown_row(tenancy, num_tokens, reservation)
            builder.add_decode_rows([tenancy], [row])

    def _try_grow(self, tenancy: SlotTenancy, end: int) -> Reservation | None:
        """Reserves blocks up to position `end`, and more while the pool has plenty."""
        spare = 0
        if self._state.cache.num_available_blocks > self._plenty:
            spare = min(self._lookahead, tenancy.max_planned - end)
        return tenancy.cache.try_schedule(end, reach=_reach(tenancy, end), spare=spare)

    def _plan_chunk(
        self, builder: PlanBuilder, rank: int, tenancy: SlotTenancy, *, spare: int
    ) -> None:
        """Adds a running prefill's next chunk, leaving `spare` tokens of the budget."""
        start = tenancy.num_planned
        num_tokens = self._sizes.of(tenancy.sequence, builder.budget - spare, start)
        if not num_tokens:
            return
        end = start + num_tokens
        reservation = self._reserve(builder, rank, tenancy, end, reach=end)
        if reservation is not None:
            builder.add_chunk(tenancy, num_tokens, reservation)

    def _reserve(
        self,
        builder: PlanBuilder,
        rank: int,
        tenancy: SlotTenancy,
        end: int,
        *,
        reach: int | None = None,
    ) -> Reservation | None:
        """Reserves blocks up to position `end`, preempting sequences after `rank`; or None."""
        state = self._state
        while True:
            reservation = tenancy.cache.try_schedule(end, reach=reach)
            if reservation is not None:
                return reservation
            builder.is_short_of_blocks = True
            if state.has_blocks_coming:
                break
            candidates = [
                s
                for s in builder.order[rank + 1 :]
                if s.tenancy is not None
                and s.tenancy.is_open
                and s.tenancy.last_step != builder.step_id
            ]
            if candidates:
                victim = self._policy.victim(candidates)
                assert victim.tenancy is not None
                state.preempt(victim.tenancy)
            elif builder.is_empty and not state.in_flight and not state.cache.num_tier_blocks:
                # It has the pool to itself and is still short: it holds private copies of blocks
                # that are cached as well, or copies of its state, or single blocks of many slabs.
                # Started again without sharing, it is known to fit.
                tenancy.sequence.is_unshared = True
                state.preempt(tenancy)
                return None
            else:
                break
        if tenancy.is_prefill and state.starved_prefill is None:
            state.starved_prefill = tenancy
        return None


def _reach(tenancy: SlotTenancy, end: int) -> int | None:
    """Returns the position that a decode row reaches; unknown (None) if it has drafts."""
    return end if tenancy.stride == 1 else None
