"""How a step is put together: decode rows, running prefills, then waiting sequences."""

from openinfer_kv_cache import Reservation
from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler._lookahead import num_lookahead_tokens
from openinfer_scheduler._step_plan import PlannedRow, StepPlan
from openinfer_scheduler.admit._admission import Admission
from openinfer_scheduler.admit._capacity_check import Room
from openinfer_scheduler.plan._plan_builder import ChunkSizes, Draft
from openinfer_scheduler.plan._policy_order import ranked_running
from openinfer_scheduler.plan._prefill_pace import PrefillPace
from openinfer_scheduler.plan._steady import SteadyRows
from openinfer_scheduler.state._scheduler_state import SchedulerState, StepInFlight
from openinfer_scheduler.state._sequence import SequenceState, Stay


class Planner:
    """Builds one plan at a time over the scheduler's state.

    The running sequences are walked in the policy's order. A row that finds no block preempts
    sequences after it, so the first always gets what it needs: at once, or, where the victim is
    in flight, when that step has completed; until then it sits out. A prefill that sat out comes
    before the decode rows behind it in the next plan, so that they cannot starve it.
    """

    def __init__(
        self,
        state: SchedulerState,
        policy: GuardedPolicy,
        pace: PrefillPace | None,
        room: Room,
    ) -> None:
        self._state = state
        self._policy = policy
        self._pace = pace
        self._sizes = ChunkSizes(state, policy)
        self._room = room
        self._admission = Admission(state, policy, self._sizes, room)
        self._decoding_since = (0, 0)
        """Changes and step when rows were last found one by one: they are noted as steady when that
        was for the plan before, because it costs as much as a plan."""
        self._lookahead = num_lookahead_tokens(state.cache.groups)
        num_ahead = state.cache.num_blocks_for(self._lookahead)
        self._roomy = 2 * num_ahead * state.config.max_num_seqs
        self._max_stride = 1 + state.config.num_draft_tokens

    def plan(self, now: float) -> StepInFlight | None:
        """The next step, or None if nothing can run."""
        state = self._state
        step_id = state.next_step
        state.probe.begin_plan(step_id)
        draft = Draft(step_id=step_id, now=now, budget=state.config.max_num_batched_tokens)
        state.cache.begin_step(step_id)
        self._room.begin_plan(step_id)
        try:
            self._plan_running(draft)
            self._admission.admit(draft)
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

    def _plan_running(self, draft: Draft) -> None:
        """Rows of the running sequences, those that need a block first."""
        state = self._state
        state.charges.check()
        if self._try_steady(draft):
            return
        state.steady = None
        state.charges.report(state.running, draft.step_id)
        if self._max_stride == 1 and self._add_decoding(draft):
            return
        draft.order = ranked_running(self._policy, state, draft.now)
        stays = [sequence.stay for sequence in draft.order]
        plain = [stay for stay in stays if stay is not None and stay.num_planned < stay.plain_until]
        draft.has_plain_rows = bool(plain)
        prefills: list[tuple[int, Stay]] = []
        if len(plain) < len(stays):
            prefills = self._plan_growing(draft, stays)
            if draft.is_full:
                plain = [stay for stay in plain if stay.is_open]
        self._add_plain(draft, plain)
        self._keep_pace(draft)
        for rank, stay in prefills:
            if stay.is_open:
                self._plan_chunk(draft, rank, stay, spare=0)
                draft.num_partial += stay.is_prefill

    def _try_steady(self, draft: Draft) -> bool:
        """The rows of the plan before, but for who came and left; False where that is not all."""
        state, steady = self._state, self._state.steady
        closed, state.closed = state.closed, []
        started, state.started = state.started, []
        if steady is None or not steady.is_current(state.num_changes):
            return False
        joined = [stay for stay in started if stay.is_open and not stay.is_through]
        if any(stay.is_prefill for stay in joined):
            return False
        steady.change(closed, joined)
        return bool(steady.stays) and self._add_steady(draft, steady)

    def _add_decoding(self, draft: Draft) -> bool:
        """Rows of running sequences that all decode; False, and none, where some find no blocks.

        Everybody is served, so nobody need be asked who goes first.
        """
        state = self._state
        all_stays = [sequence.stay for sequence in state.running]
        stays = [s for s in all_stays if s is not None and s.num_planned < s.max_planned]
        growing = [row for row, s in enumerate(stays) if s.num_planned >= s.plain_until]
        if any(stays[row].is_prefill for row in growing) or not stays:
            return False
        since, self._decoding_since = self._decoding_since, (state.num_changes, draft.step_id)
        if since == (state.num_changes, draft.step_id - 1) and not growing:
            state.steady = SteadyRows(stays, state.num_changes)
            return self._add_steady(draft, state.steady)
        rows = self._try_grow_all(draft, stays, [stay.decode_row for stay in stays], growing)
        if rows is None:
            return False
        for stay in stays:
            stay.num_planned += 1
            stay.last_step = draft.step_id
        self._take_decoding(draft, stays, rows)
        return True

    def _add_steady(self, draft: Draft, steady: SteadyRows) -> bool:
        """Rows of sequences that all decode; False, and none, where some find no blocks."""
        growing = steady.take_growing()
        rows = self._try_grow_all(draft, steady.stays, steady.rows, growing)
        if rows is None:
            return False
        for row in growing:
            steady.note_growth(row)
        draft.steady = steady.advance(draft.step_id)
        self._take_decoding(draft, steady.stays, rows)
        return True

    def _take_decoding(self, draft: Draft, stays: list[Stay], rows: list[PlannedRow]) -> None:
        draft.decode_rows, draft.decode_stays = rows, stays
        draft.budget -= len(rows)
        self._keep_pace(draft)

    def _try_grow_all(
        self, draft: Draft, stays: list[Stay], rows: list[PlannedRow], growing: list[int]
    ) -> list[PlannedRow] | None:
        """The rows, with blocks for those that need some; None, and no block, for lack of room."""
        if not growing:
            return rows
        reservations: list[tuple[Stay, Reservation]] = []
        for row in growing:
            stay = stays[row]
            reservation = self._try_grow(stay, stay.num_planned + 1)
            if reservation is None:
                for other, taken in reversed(reservations):
                    other.cache.revert(taken)
                return None
            reservations.append((stay, reservation))
        rows = rows.copy()
        for row, (stay, reservation) in zip(growing, reservations, strict=True):
            rows[row] = _grown_row(stay, 1, reservation)
            draft.add_copies(reservation)
            stay.update_plain_until()
        return rows

    def _keep_pace(self, draft: Draft) -> None:
        """Leaves so much of the budget to prefills as decode rows beside them can bear."""
        if self._pace is not None and draft.decode_rows:
            taken = sum(row.num_tokens for row in draft.prefill_rows)
            draft.budget = min(draft.budget, max(0, self._pace.max_tokens - taken))

    def _plan_growing(self, draft: Draft, stays: list[Stay | None]) -> list[tuple[int, Stay]]:
        """Decode rows that need blocks, in order; returns the prefills, which come later."""
        prefills: list[tuple[int, Stay]] = []
        starved, self._state.starved = self._state.starved, None
        for rank, stay in enumerate(stays):
            # A stay is closed where one of these rows preempted it, which may be a plain one.
            if stay is None or stay.num_planned < stay.plain_until or not stay.is_open:
                continue
            if stay.num_planned >= stay.num_given:
                if stay.num_planned < stay.max_planned:
                    self._add_grown(draft, rank, stay)
            elif stay is starved:
                self._plan_starved(draft, rank, stay)
            else:
                prefills.append((rank, stay))
        return prefills

    def _plan_starved(self, draft: Draft, rank: int, stay: Stay) -> None:
        """A chunk of a prefill that sat out, out of what all others need to decode."""
        others = (len(draft.order) - 1) * self._max_stride
        budget = draft.budget
        if self._pace is not None:
            draft.budget = min(budget, others + self._pace.max_tokens)
        held_back = budget - draft.budget
        self._plan_chunk(draft, rank, stay, spare=others)
        draft.budget += held_back
        draft.num_partial += stay.is_open and stay.is_prefill

    def _add_plain(self, draft: Draft, plain: list[Stay]) -> None:
        step_id = draft.step_id
        if self._max_stride == 1:
            for stay in plain:
                stay.num_planned += 1
                stay.last_step = step_id
        else:
            for stay in plain:
                stay.num_planned += stay.stride
                stay.last_step = step_id
        draft.decode_rows += [stay.decode_row for stay in plain]
        draft.decode_stays += plain
        draft.has_plain_rows = False
        if self._max_stride == 1:
            draft.budget -= len(draft.decode_rows)
        else:
            draft.budget -= sum([row.num_tokens for row in draft.decode_rows])

    def _add_grown(self, draft: Draft, rank: int, stay: Stay) -> None:
        """Adds the decode row of positions that have no block yet, if there is room."""
        start = stay.num_planned
        num_tokens = min(stay.stride, stay.max_planned - start)
        reservation = self._try_grow(stay, start + num_tokens)
        if reservation is None:  # drafts are worth nobody's blocks
            num_tokens = 1
            end = start + 1
            reservation = self._reserve(draft, rank, stay, end, reach=_reach(stay, end))
        if reservation is None:
            return
        stay.num_planned += num_tokens
        stay.last_step = draft.step_id
        stay.update_plain_until()
        draft.decode_rows.append(_grown_row(stay, num_tokens, reservation))
        draft.decode_stays.append(stay)
        draft.add_copies(reservation)

    def _try_grow(self, stay: Stay, end: int) -> Reservation | None:
        """Blocks for a decode row's positions below `end`, and more while the pool has plenty."""
        spare = 0
        if self._state.cache.num_available_blocks > self._roomy:
            spare = min(self._lookahead, stay.max_planned - end)
        return stay.cache.try_schedule(end, reach=_reach(stay, end), spare=spare)

    def _plan_chunk(self, draft: Draft, rank: int, stay: Stay, *, spare: int) -> None:
        """Adds a running prefill's next chunk, leaving `spare` tokens of the budget."""
        num_tokens = self._sizes.of(stay.sequence, draft.budget - spare, stay.num_planned)
        if not num_tokens:
            return
        end = stay.num_planned + num_tokens
        reservation = self._reserve(draft, rank, stay, end, reach=end)
        if reservation is not None:
            draft.add_chunk(stay, num_tokens, reservation)

    def _reserve(
        self, draft: Draft, rank: int, stay: Stay, end: int, *, reach: int | None = None
    ) -> Reservation | None:
        """Room for the positions below `end`, at the cost of sequences after `rank`; or None."""
        state = self._state
        while True:
            reservation = stay.cache.try_schedule(end, reach=reach)
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
            elif draft.is_empty and not state.in_flight and not state.cache.num_tier_blocks:
                # Alone and still short: it holds duplicates of blocks whose other holders are gone,
                # and those blocks too; or copies of its state; or single blocks of many slabs. By
                # itself, started again from nothing, its lifetime is known to fit.
                stay.sequence.is_by_itself = True
                state.preempt(stay)
                return None
            else:
                break
        if stay.is_prefill and state.starved is None:
            state.starved = stay
        return None

    def _preempt_one_of(self, candidates: list[SequenceState]) -> None:
        victim = self._policy.victim(candidates.copy())
        if not any(victim is candidate for candidate in candidates):
            raise self._policy.fault("victim() returned a sequence that is no candidate")
        assert victim.stay is not None
        self._state.preempt(victim.stay)

    def _finished(self, draft: Draft) -> StepInFlight:
        state = self._state
        rows = draft.decode_rows + draft.prefill_rows
        stays = draft.decode_stays + draft.prefill_stays
        positions = {}
        num_decode = len(draft.decode_rows)
        num_prefill_tokens = 0
        for index, stay in enumerate(draft.prefill_stays):
            row = draft.prefill_rows[index]
            num_prefill_tokens += row.num_tokens
            if stay.sequence.prompt_logprobs_from is not None:
                positions[num_decode + index] = stay.num_planned - row.num_tokens
        plan = StepPlan(
            step_id=draft.step_id,
            ends=state.slots.announce(),
            starts=tuple(draft.starts),
            rows=tuple(rows),
            copies_before=tuple(draft.copies_before),
            copies_after=tuple(draft.copies_after),
        )
        return StepInFlight(
            plan=plan,
            stays=stays,
            started=draft.started,
            prompt_positions=positions,
            planned_at=draft.now,
            num_decode=num_decode,
            steady=draft.steady,
            num_prefill_tokens=num_prefill_tokens,
        )


def _reach(stay: Stay, end: int) -> int | None:
    """How far a decode row gets: with drafts that is not known before the step is done."""
    return end if stay.stride == 1 else None


def _grown_row(stay: Stay, num_tokens: int, reservation: Reservation) -> PlannedRow:
    return PlannedRow(
        slot=stay.slot,
        num_tokens=num_tokens,
        token_ids=None,
        new_block_ids=reservation.new_block_ids,
        is_sampled=True,
        needs_mask=stay.decode_row.needs_mask,
    )
