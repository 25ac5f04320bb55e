"""What the scheduler holds, and the few moves that change who is where.

Blocks are the cache's to count, slots `Slots`'; here lives which sequence has which.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from openinfer_contract import End, Failed, Finished, FinishReason, Scheduled, TokenEvent
from openinfer_kv_cache import KVCache, SequenceCache
from openinfer_scheduler._config import SchedulerConfig
from openinfer_scheduler._step_plan import StepPlan
from openinfer_scheduler.plan._steady import SteadyPlan, SteadyRows
from openinfer_scheduler.state._adapter_slots import AdapterSlots
from openinfer_scheduler.state._deadlines import Deadlines
from openinfer_scheduler.state._prefix_probe import PrefixProbe
from openinfer_scheduler.state._sequence import SequenceState, Stay
from openinfer_scheduler.state._service_accounts import Charges
from openinfer_scheduler.state._slots import Slots
from openinfer_scheduler.state._waiting_queue import WaitingQueue


@dataclass(slots=True, kw_only=True)
class StepInFlight:
    """A plan that was made and neither applied, failed nor reverted."""

    plan: StepPlan
    stays: list[Stay]
    """By row of the plan."""
    started: list[Stay]
    """By `plan.starts`."""
    prompt_positions: dict[int, int]
    """By row index, where prompt logprobs are wanted: the first position forwarded."""
    planned_at: float
    num_decode: int
    """Decode rows; they come first."""
    steady: SteadyPlan | None
    """The decode rows, where they are steady."""
    num_prefill_tokens: int
    closed: list[Stay] = field(default_factory=list)
    """Stays that have been closed since the plan was made."""


@dataclass(slots=True)
class Counters:
    """Totals since the start; they only grow."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_finished: int = 0
    num_preemptions: int = 0
    num_rejected: int = 0
    num_failed: int = 0


@dataclass(slots=True)
class SchedulerState:
    """Every live request is in `live`, and either in `waiting`, in `running` or settling."""

    config: SchedulerConfig
    cache: KVCache
    slots: Slots
    adapters: AdapterSlots
    probe: PrefixProbe
    charges: Charges
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    running: list[SequenceState] = field(default_factory=list)
    """In order of arrival; their stays are open."""
    live: dict[str, SequenceState] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    steady: SteadyRows | None = None
    """What the last plan had for decode rows, where all that ran only decoded."""
    started: list[Stay] = field(default_factory=list)
    """Since the last plan that looked at who decodes; some may be closed again."""
    closed: list[Stay] = field(default_factory=list)
    """Since then."""
    starved: Stay | None = None
    """A prefill that found no blocks in the last plan."""
    in_flight: deque[StepInFlight] = field(default_factory=deque)
    counters: Counters = field(default_factory=Counters)
    next_step: int = 1
    last_completed: int = 0
    num_moves: int = 0
    """Grows with everything that may let a waiting sequence start, but for blocks that return."""
    num_changes: int = 0
    """Grows whenever something else than plans, starts and ends moves a stay that is in a slot."""
    parked_until: int = 0
    """The newest step that holds blocks of closed stays."""
    settling: list[Stay] = field(default_factory=list)
    """Preempted stays with rows in flight."""
    closing: Callable[[SequenceCache], None] | None = None
    """Told of a stay's blocks before they are let go of."""

    @property
    def has_blocks_coming(self) -> bool:
        """Whether a step in flight holds blocks that return when it completes."""
        return bool(self.in_flight) and self.parked_until > self.last_completed

    def enqueue(self, sequence: SequenceState) -> None:
        """Puts a live sequence without a slot at its place in the queue."""
        self.num_moves += 1
        self.waiting.push(sequence)

    def start(self, sequence: SequenceState, stay: Stay, now: float) -> None:
        """Moves a waiting sequence into its slot."""
        self.waiting.remove(sequence)
        sequence.stay = stay
        self.started.append(stay)
        insort(self.running, sequence, key=attrgetter("arrival_index"))
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now
            sequence.num_cached_tokens = stay.num_planned
            sequence.cached_by_tier = stay.cache.cached_by_tier

    def close(self, stay: Stay) -> None:
        """Takes a stay out of all later plans; its blocks return after its last step in flight."""
        self.num_moves += 1
        self.closed.append(stay)
        for step in self.in_flight:
            step.closed.append(stay)
        stay.settle_blocks()
        if self.closing is not None:
            self.closing(stay.cache)
        self.charges.close((stay,))
        if self.starved is stay:
            self.starved = None
        stay.is_open = False
        stay.plain_until = stay.next_check = 0
        self.running.remove(stay.sequence)
        if not self.running:  # nothing is held of requests that are over
            self.steady = None
            self.started.clear()
            self.closed.clear()
        self.slots.give_back(stay.slot)
        if stay.adapter_uid is not None:
            self.adapters.give_back(stay.adapter_uid)
        self._close_cache(stay)

    def _close_cache(self, stay: Stay) -> None:
        if stay.last_step > self.last_completed:
            stay.cache.close(in_flight_until=stay.last_step)
            self.parked_until = max(self.parked_until, stay.last_step)
        else:
            stay.cache.close(in_flight_until=None)

    def preempt(self, stay: Stay) -> None:
        """Takes a sequence's blocks; it waits again once its tokens in flight are known."""
        stay.sequence.num_preemptions += 1
        self.counters.num_preemptions += 1
        self.close(stay)
        if stay.last_step > self.last_completed:
            self.settling.append(stay)
        else:
            self.requeue(stay)

    def restart(self, stay: Stay) -> None:
        """Like `preempt`, for a stay, preempted or not, whose tokens in flight must not count."""
        if stay.is_open:
            stay.sequence.num_preemptions += 1
            self.counters.num_preemptions += 1
            self.close(stay)
        else:
            self.settling.remove(stay)
        self.requeue(stay)

    def requeue(self, stay: Stay) -> None:
        """Sends a closed stay's sequence back to its place in the queue."""
        stay.is_settling = False
        stay.sequence.stay = None
        self.enqueue(stay.sequence)

    def requeue_settled(self, step_id: int) -> None:
        """Sends preempted sequences back whose last step in flight was this one."""
        for stay in [s for s in self.settling if s.last_step <= step_id]:
            self.settling.remove(stay)
            self.requeue(stay)

    def finish(
        self,
        sequence: SequenceState,
        reason: FinishReason,
        now: float,
        *,
        stop_token_id: int | None = None,
    ) -> Finished:
        """Ends a live sequence as it should, or by abort."""
        self._leave(sequence)
        self.counters.num_finished += 1
        return sequence.finished(reason, now, stop_token_id=stop_token_id)

    def fail(
        self, sequence: SequenceState, message: str, *, is_retryable: bool, field: str = ""
    ) -> Failed:
        """Ends a live sequence that cannot go on."""
        self._leave(sequence)
        self.counters.num_failed += 1
        return Failed(
            message=message,
            is_retryable=is_retryable,
            num_prompt_tokens=sequence.request.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens,
            field=field,
        )

    def _leave(self, sequence: SequenceState) -> None:
        self.num_moves += 1
        stay = sequence.stay
        if stay is None:
            self.waiting.remove(sequence)
        else:
            stay.is_settling = False
            if stay.is_open:
                self.close(stay)
            else:
                self.settling.remove(stay)
        sequence.stay = None
        del self.live[sequence.request_id]
        self.deadlines.remove(sequence)

    def revert_newest(self) -> None:
        """Takes back the newest plan: rows, blocks, slots and admissions."""
        self.num_changes += 1
        step = self.in_flight.pop()
        step_id = step.plan.step_id
        for stay in step.started:
            self._revert_start(stay, step_id)
        self.cache.revert_step(step_id)
        self.parked_until = step_id - 1
        self.next_step = step_id
        for row, stay in zip(step.plan.rows, step.stays, strict=True):
            stay.num_planned -= row.num_tokens
            stay.last_step = step_id - 1
            stay.chunk_step = min(stay.chunk_step, step_id - 1)
            if stay.is_open:
                stay.update_plain_until()
        self.charges.close(step.stays)
        self.slots.revert_announce(step.plan.ends)

    def _revert_start(self, stay: Stay, step_id: int) -> None:
        if not stay.is_open:
            self.slots.revert_give_back(stay.slot)
            return
        sequence = stay.sequence
        stay.is_open = stay.is_settling = False
        stay.plain_until = 0
        self.running.remove(sequence)
        self.slots.revert_take(stay.slot)
        if stay.adapter_uid is not None:
            self.adapters.give_back(stay.adapter_uid)
        stay.cache.close(in_flight_until=step_id)
        if sequence.num_preemptions == 0:
            sequence.scheduled_at = None
            sequence.num_cached_tokens = 0
        sequence.stay = None
        self.enqueue(sequence)

    def event(self, sequence: SequenceState, end: End) -> tuple[str, TokenEvent]:
        """The terminal event of a sequence that was not ended by a token."""
        return sequence.request_id, TokenEvent(scheduled=self.announce(sequence), end=end)

    def announce(self, sequence: SequenceState) -> Scheduled | None:
        """Scheduled, the first time it can be said."""
        if sequence.is_announced or sequence.scheduled_at is None:
            return None
        sequence.is_announced = True
        counters = self.counters
        counters.num_prompt_tokens += sequence.request.num_prompt_tokens
        counters.num_cached_tokens += sequence.num_cached_tokens
        return sequence.scheduled()
