"""The scheduler's state, and the transitions of a sequence between queue, slot and end.

The cache counts blocks and `Slots` counts slots; this module knows which sequence holds which.
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
from openinfer_scheduler.state._adapter_slots import AdapterSlots
from openinfer_scheduler.state._deadlines import Deadlines
from openinfer_scheduler.state._prefix_probe import PrefixProbe
from openinfer_scheduler.state._sequence import SequenceState, SlotTenancy
from openinfer_scheduler.state._service_accounts import ServiceAccounts
from openinfer_scheduler.state._slots import Slots
from openinfer_scheduler.state._waiting_queue import WaitingQueue


@dataclass(slots=True, kw_only=True)
class StepInFlight:
    """A plan that was neither applied nor failed yet."""

    plan: StepPlan
    tenancies: list[SlotTenancy]
    """One for each row of the plan."""
    started: list[SlotTenancy]
    """One for each entry of `plan.starts`."""
    prompt_positions: dict[int, int]
    """First position forwarded, by index of rows whose request wants prompt logprobs."""
    planned_at: float
    num_decode: int
    """Number of decode rows; they come first."""
    num_prefill_tokens: int


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_finished: int = 0
    num_preemptions: int = 0
    num_rejected: int = 0
    num_failed: int = 0


@dataclass(slots=True)
class SchedulerState:
    """The state of one scheduler: live requests, steps in flight, slots and counters.

    Every live request is in `live`, and either in `waiting`, in `running` or in `settling`.
    """

    config: SchedulerConfig
    cache: KVCache
    slots: Slots
    adapters: AdapterSlots
    probe: PrefixProbe
    accounts: ServiceAccounts
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    running: list[SequenceState] = field(default_factory=list)
    """Sequences whose tenancy is open, in order of arrival."""
    live: dict[str, SequenceState] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    starved_prefill: SlotTenancy | None = None
    """A running prefill that found no blocks in the last plan."""
    in_flight: deque[StepInFlight] = field(default_factory=deque)
    counters: Counters = field(default_factory=Counters)
    next_step: int = 1
    last_completed: int = 0
    admission_epoch: int = 0
    """Incremented whenever a refused admission is worth retrying, except when blocks are freed."""
    parked_until: int = 0
    """The newest step that holds blocks of tenancies that ended."""
    settling: list[SlotTenancy] = field(default_factory=list)
    """Preempted tenancies with rows in flight."""
    closing: Callable[[SequenceCache], None] | None = None
    """Called with a tenancy's blocks before they are released."""

    @property
    def has_blocks_coming(self) -> bool:
        """Whether a step in flight holds blocks that are freed when it completes."""
        return bool(self.in_flight) and self.parked_until > self.last_completed

    def enqueue(self, sequence: SequenceState) -> None:
        """Puts a live sequence without a slot at its place in the queue."""
        self.admission_epoch += 1
        self.waiting.push(sequence)

    def start(self, sequence: SequenceState, tenancy: SlotTenancy, now: float) -> None:
        """Moves a waiting sequence into its slot."""
        self.waiting.remove(sequence)
        sequence.tenancy = tenancy
        insort(self.running, sequence, key=attrgetter("arrival_index"))
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now
            sequence.num_cached_tokens = tenancy.num_planned
            sequence.cached_by_tier = tenancy.cache.cached_by_tier

    def release(self, tenancy: SlotTenancy) -> None:
        """Ends a tenancy: releases its slot now, and its blocks after its last step in flight."""
        self.admission_epoch += 1
        tenancy.settle_blocks()
        if self.closing is not None:
            self.closing(tenancy.cache)
        self.accounts.charge((tenancy,))
        if self.starved_prefill is tenancy:
            self.starved_prefill = None
        tenancy.is_open = False
        tenancy.plain_until = tenancy.next_check = 0
        self.running.remove(tenancy.sequence)
        self.slots.release(tenancy.slot)
        if tenancy.adapter_uid is not None:
            self.adapters.release(tenancy.adapter_uid)
        if tenancy.last_step > self.last_completed:
            tenancy.cache.close(in_flight_until=tenancy.last_step)
            self.parked_until = max(self.parked_until, tenancy.last_step)
        else:
            tenancy.cache.close(in_flight_until=None)

    def preempt(self, tenancy: SlotTenancy) -> None:
        """Releases a sequence's blocks. It waits again once its tokens in flight are settled."""
        tenancy.sequence.num_preemptions += 1
        self.counters.num_preemptions += 1
        self.release(tenancy)
        if tenancy.last_step > self.last_completed:
            self.settling.append(tenancy)
        else:
            self.requeue(tenancy)

    def restart(self, tenancy: SlotTenancy) -> None:
        """Preempts a sequence and drops its tokens in flight; it may be preempted already."""
        if tenancy.is_open:
            tenancy.sequence.num_preemptions += 1
            self.counters.num_preemptions += 1
            self.release(tenancy)
        else:
            self.settling.remove(tenancy)
        self.requeue(tenancy)

    def requeue(self, tenancy: SlotTenancy) -> None:
        """Puts the sequence of a released tenancy back at its place in the queue."""
        tenancy.is_settling = False
        tenancy.sequence.tenancy = None
        self.enqueue(tenancy.sequence)

    def requeue_settled(self, step_id: int) -> None:
        """Requeues preempted sequences whose last step in flight was `step_id`."""
        for tenancy in [each for each in self.settling if each.last_step <= step_id]:
            self.settling.remove(tenancy)
            self.requeue(tenancy)

    def finish(
        self,
        sequence: SequenceState,
        reason: FinishReason,
        now: float,
        *,
        stop_token_id: int | None = None,
    ) -> Finished:
        """Drops a live sequence that has finished or was aborted."""
        self._drop(sequence)
        self.counters.num_finished += 1
        return sequence.finished(reason, now, stop_token_id=stop_token_id)

    def fail(
        self, sequence: SequenceState, message: str, *, is_retryable: bool, field: str = ""
    ) -> Failed:
        """Drops a live sequence that has failed."""
        self._drop(sequence)
        self.counters.num_failed += 1
        return Failed(
            message=message,
            is_retryable=is_retryable,
            num_prompt_tokens=sequence.request.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens,
            field=field,
        )

    def _drop(self, sequence: SequenceState) -> None:
        self.admission_epoch += 1
        tenancy = sequence.tenancy
        if tenancy is None:
            self.waiting.remove(sequence)
        else:
            tenancy.is_settling = False
            if tenancy.is_open:
                self.release(tenancy)
            else:
                self.settling.remove(tenancy)
        sequence.tenancy = None
        del self.live[sequence.request_id]
        self.deadlines.remove(sequence)

    def end_event(self, sequence: SequenceState, end: End) -> tuple[str, TokenEvent]:
        """Returns the terminal event of a sequence that was not ended by a token."""
        return sequence.request_id, TokenEvent(scheduled=self.announce(sequence), end=end)

    def announce(self, sequence: SequenceState) -> Scheduled | None:
        """Returns the Scheduled event if the sequence has started and the event is still due."""
        if sequence.is_announced or sequence.scheduled_at is None:
            return None
        sequence.is_announced = True
        counters = self.counters
        counters.num_prompt_tokens += sequence.request.num_prompt_tokens
        counters.num_cached_tokens += sequence.num_cached_tokens
        return sequence.scheduled()
