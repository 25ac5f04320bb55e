"""The state machine: add, plan, apply."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from openinfer_contract import GenerateRequest, Load, Rejected
from openinfer_kv_cache import KVCache, SequenceCache
from openinfer_scheduler._config import SchedulerConfig
from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler._load import load_of
from openinfer_scheduler._policy import Policy, check_policy
from openinfer_scheduler._step_plan import StepPlan, StepResult
from openinfer_scheduler.admit._capacity_check import Room
from openinfer_scheduler.admit._intake import PROMPT_NOT_HERE, Intake
from openinfer_scheduler.errors import StepOrderError
from openinfer_scheduler.plan._planner import Planner
from openinfer_scheduler.plan._prefill_pace import PrefillPace
from openinfer_scheduler.plan._repeat import num_repeats, repeat
from openinfer_scheduler.policies._fcfs import FCFS
from openinfer_scheduler.settle._forced_tokens import force
from openinfer_scheduler.settle._settle import Effects, own_faults, settle
from openinfer_scheduler.state._adapter_slots import AdapterSlots
from openinfer_scheduler.state._prefix_probe import PrefixProbe
from openinfer_scheduler.state._scheduler_state import SchedulerState, StepInFlight
from openinfer_scheduler.state._seeds import Seeds
from openinfer_scheduler.state._sequence import SequenceState
from openinfer_scheduler.state._service_accounts import Charges
from openinfer_scheduler.state._slots import Slots


class Scheduler:
    """Admission, continuous batching, chunked prefill and preemption over one cache.

    Deterministic: no clock, no I/O, no threads. Call everything from one thread; `now` is
    `time.monotonic()` seconds and never goes back.

    A request is *waiting* (no slot, no blocks) until a plan starts it, *running* until its last
    token is applied, and waiting again when it is preempted. A plan is *in flight* until it is
    applied or failed, oldest first, or reverted, newest first, because it was never launched.

    With several plans in flight a decode row is planned before its last token is known. Ends by
    length are planned. Of a sequence that stopped, was aborted or failed, rows in flight are
    surplus: their tokens are dropped, and its blocks return when the last of them has completed.
    A sequence preempted with rows in flight is in no later plan, its tokens in flight still count
    and are emitted, and with the last of them it is back in the queue.

    Args:
        config: limits and switches.
        cache: this scheduler is its only user.
        policy: order, chunk sizes and victims; `FCFS()` if None.
        closing: called with the blocks of a sequence that ends or is preempted before they are let
            go of; a tier saves them then.

    Raises:
        TypeError: the policy is none: a class, or without a method that `Policy` has.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        policy: Policy | None = None,
        *,
        closing: Callable[[SequenceCache], None] | None = None,
    ) -> None:
        policy = FCFS() if policy is None else policy
        check_policy(policy)
        self._config = config
        self._cache = cache
        self._policy = guarded = GuardedPolicy(policy)
        self._state = SchedulerState(
            config=config,
            cache=cache,
            slots=Slots(config.max_num_seqs),
            adapters=AdapterSlots(config.max_adapters),
            probe=PrefixProbe(cache),
            charges=Charges(guarded),
            closing=closing,
        )
        self._intake = Intake(self._state)
        target_s = config.target_itl_s
        self._pace = None if target_s is None else PrefillPace(target_s)
        self._room = Room(self._state)
        self._planner = Planner(self._state, guarded, self._pace, self._room)
        self._last_completed_at = -math.inf
        self._num_added = 0
        self._seeds = Seeds(config.seed)
        self._eos_ids = frozenset(config.eos_token_ids)

    def add(
        self, request: GenerateRequest, now: float, *, is_loading: bool = False
    ) -> Rejected | None:
        """Queues a request, or says why not. Costs microseconds.

        Checks what only the scheduler knows: a live request of the same id (duplicate), a full
        intake (overloaded), a sequence that could never fit the pool or `max_model_len`
        (too_long), what the engine's role does not serve (unsupported, unavailable).
        `openinfer_contract.check_request` checks the rest, before.

        Args:
            request: what is asked.
            now: monotonic seconds.
            is_loading: a tier is bringing blocks of its prefix. The request waits at its place
                without holding others up, until `loaded`.
        """
        rejected = self._intake.rejection(request)
        state = self._state
        if rejected is not None:
            state.counters.num_rejected += 1
            return rejected
        stop = request.stop
        stop_ids = self._eos_ids if not stop.ignore_eos else frozenset()
        if stop.stop_token_ids:
            stop_ids = stop_ids.union(stop.stop_token_ids)
        sequence = SequenceState(
            request,
            arrival=now if request.arrival is None else min(now, request.arrival),
            arrival_index=self._num_added,
            seed=self._seeds.draw() if request.sampling.seed is None else request.sampling.seed,
            max_total=self._intake.max_total(request),
            stop_ids=stop_ids,
            probe=state.probe,
        )
        if not is_loading and self._intake.lacks_prompt(sequence):
            state.counters.num_rejected += 1
            return Rejected(kind="unsupported", field="kv_transfer", message=PROMPT_NOT_HERE)
        sequence.is_loading = is_loading
        self._num_added += 1
        state.live[request.request_id] = sequence
        state.enqueue(sequence)
        state.deadlines.add(sequence)
        return None

    def loaded(self, request_ids: Iterable[str], now: float) -> Effects:
        """The tier is done with these requests: what it brought can be hit, the rest is computed.

        Unknown ids, and requests that were not loading, are ignored. On an engine whose role is
        decode, a request whose prompt is still not there (see `SchedulerConfig.role`) ends Failed:
        whoever sent it has it prefilled again.
        """
        state = self._state
        effects: Effects = []
        for request_id in request_ids:
            sequence = state.live.get(request_id)
            if sequence is None or not sequence.is_loading:
                continue
            sequence.is_loading = False
            state.num_moves += 1
            if self._intake.lacks_prompt(sequence):
                failed = state.fail(sequence, PROMPT_NOT_HERE, is_retryable=True)
                effects.append(state.event(sequence, failed))
        return effects

    def abort(self, request_ids: Iterable[str], now: float) -> Effects:
        """Ends live requests with `Finished(reason="abort")`; unknown ids are ignored.

        They are in no later plan; what steps in flight still sample for them is dropped, and
        their blocks return when those steps have completed.
        """
        state = self._state
        effects: Effects = []
        for request_id in request_ids:
            sequence = state.live.get(request_id)
            if sequence is not None:
                effects.append(state.event(sequence, state.finish(sequence, "abort", now)))
        return effects

    def abort_all(self, now: float) -> Effects:
        """Aborts every live request."""
        return self.abort(list(self._state.live), now)

    def expire(self, now: float) -> Effects:
        """Fails every request whose deadline has passed. Constant time where none has."""
        state = self._state
        effects: Effects = []
        for sequence in state.deadlines.passed(now):
            message = f"the deadline passed after {sequence.num_output_tokens} output tokens"
            failed = state.fail(sequence, message, is_retryable=False, field="deadline")
            effects.append(state.event(sequence, failed))
        return effects

    def fail_some(self, messages: Mapping[str, str], now: float, *, field: str = "") -> Effects:
        """Ends live requests with Failed, by id and why; unknown ids are ignored.

        Args:
            messages: by request id.
            now: monotonic seconds.
            field: `Failed.field`, where a request has itself to blame.
        """
        state = self._state
        effects: Effects = []
        for request_id, message in messages.items():
            sequence = state.live.get(request_id)
            if sequence is not None:
                failed = state.fail(sequence, message, is_retryable=False, field=field)
                effects.append(state.event(sequence, failed))
        return effects

    def force(self, request_id: str, token_ids: bytes, now: float) -> Effects:
        """Gives a running request its next output tokens: they need not be sampled.

        Its next row forwards them together, behind the token sampled last. What rows in flight
        sample for it is dropped. To be called between an `apply` that settled tokens of the
        request and the next `plan`, for a request without drafts and without logprobs. Rows in
        flight must have nothing else to sample: a mask leaves them these tokens alone.

        Args:
            request_id: live; nothing is done for one that is preempted now, or has more rows in
                flight than tokens given.
            token_ids: u32 column, at least one id. Ends count as in sampled output. Over a cache
                with a window group only the first are taken, as many as a chunk has: the effects
                say how many.
            now: monotonic seconds.
        """
        sequence = self._state.live[request_id]
        event = force(self._state, sequence, token_ids, now)
        return [] if event is None else [(request_id, event)]

    def fail_all(self, message: str, now: float) -> Effects:
        """Ends every live request with Failed. Steps in flight are applied or failed as usual."""
        state = self._state
        return [
            state.event(sequence, state.fail(sequence, message, is_retryable=True))
            for sequence in list(state.live.values())
        ]

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None: nothing can run now, or `depth` plans are in flight.

        None with a step in flight means: apply it, then ask again. None with no step in flight
        means that nothing is live, or that whatever is waits for a tier: for a load, or for blocks
        that copies hold. A plan may have no rows; it is run like any other.

        Raises:
            PolicyError: the policy raised or broke its contract; nothing has been planned then, and
                the next call asks it again, unless `fall_back` was called.
        """
        state = self._state
        if len(state.in_flight) >= self._config.depth:
            return None
        if not (state.running or state.waiting or state.slots.has_over):
            return None
        step = self._planner.plan(now)
        if step is None:
            return None
        try:
            self._state.charges.add(step.stays[step.num_decode :])
        except BaseException:
            self._state.revert_newest()
            raise
        return step.plan

    def fall_back(self) -> None:
        """Lets the policy go: from now on first come, first served."""
        self._policy.fall_back()

    def apply(self, result: StepResult, now: float) -> Effects:
        """Settles the oldest step in flight: appends tokens, finishes sequences, frees blocks.

        A row that failed alone (say, with NaN logits) may have left garbage in blocks that others
        would find: the prefix cache is forgotten as in `fail`. Not where a request had ruled every
        token out itself, or any client could have it forgotten.

        Raises:
            StepOrderError: `result` is not of the oldest step in flight.
            ValueError: the result does not fit the plan; the scheduler is of no further use.
        """
        step = self._complete(result.step_id)
        if self._pace is not None and step.stays:
            duration_s = now - max(step.planned_at, self._last_completed_at)
            self._pace.record(step.num_prefill_tokens, duration_s, has_decode=step.num_decode > 0)
        self._last_completed_at = now
        faults = own_faults(step, result) if result.failed else {}
        if len(faults) < len(result.failed):
            self._distrust_cache()
        return settle(self._state, step, result, now, faults)

    @property
    def num_repeats(self) -> int:
        """How many steps may follow the one in flight that only repeat it; 0 where any may differ.

        They have its rows, all decode rows; nobody waits, no row needs a block, and none of their
        tokens can end a request.
        """
        is_bound = self._config.depth != 2 or self._room.is_recounted or self._pace is not None
        return 0 if is_bound or self._state.deadlines else num_repeats(self._state)

    def repeat(self, columns: Sequence[bytes], num_steps: int, now: float) -> Effects:
        """Plans so many more steps and applies as many, at once: what simulations gain most from.

        The step in flight and all of these but the last are applied, as by that many calls of
        `plan` and `apply`; the last is in flight then.

        Args:
            columns: by row of the step in flight, `num_steps` tokens as a u32 column each.
            num_steps: from 1 to `num_repeats`.
            now: when the last of those applied was, monotonic seconds.

        Returns:
            One event a row, with all its tokens.

        Raises:
            StepOrderError: `num_steps` is out of these bounds.
        """
        most = self.num_repeats
        if not 0 < num_steps <= most:
            raise StepOrderError(f"{num_steps} steps are not among the {most} that may repeat")
        effects = repeat(self._state, columns, num_steps)
        self._last_completed_at = now
        return effects

    def revert(self, step_id: int) -> None:
        """Takes back the newest plan, which was never launched.

        Its rows, admissions, blocks and slots are as if it had never been planned; preemptions
        and evictions it caused stay. Its step id is used again by the next plan.

        Raises:
            StepOrderError: `step_id` is not the newest plan in flight.
        """
        in_flight = self._state.in_flight
        if not in_flight or in_flight[-1].plan.step_id != step_id:
            raise StepOrderError(f"step {step_id} is not the newest in flight")
        self._state.revert_newest()

    def fail(self, step_id: int, message: str, now: float) -> Effects:
        """The oldest step in flight ran and failed: every request with a row in it ends Failed.

        The prefix cache is forgotten, because blocks this step should have filled may be in it.
        Sequences that started on such blocks in a later step in flight are recomputed from their
        known tokens; everybody else goes on.

        Raises:
            StepOrderError: `step_id` is not the oldest step in flight.
        """
        state = self._state
        step = self._complete(step_id)
        self._last_completed_at = now
        self._distrust_cache()
        effects: Effects = []
        for stay in step.stays:
            if stay.is_settling:
                sequence = stay.sequence
                failed = state.fail(sequence, message, is_retryable=True)
                effects.append(state.event(sequence, failed))
        state.requeue_settled(step_id)
        return effects

    def _distrust_cache(self) -> None:
        """Forgets cached blocks, and recomputes who began on some in a later step in flight."""
        state = self._state
        self._cache.reset()
        for later in state.in_flight:
            for stay in later.started:
                if stay.is_settling and stay.cache.num_cached_tokens:
                    state.restart(stay)

    def reset_prefix_cache(self) -> None:
        """Forgets every cached block. Running sequences keep theirs and go on."""
        self._cache.reset()

    @property
    def has_work(self) -> bool:
        """Whether a request is live, a step is in flight, or a plan must still end slots."""
        state = self._state
        return bool(state.live or state.in_flight or state.slots.has_over)

    @property
    def num_in_flight(self) -> int:
        """Plans made and neither applied, failed nor reverted."""
        return len(self._state.in_flight)

    @property
    def num_entitled_blocks(self) -> int:
        """Blocks, or slabs, that running sequences may still claim: loads from tiers leave so many.

        All that they may ever need with admission for the lifetime, else the rest of their prompts,
        their next tokens and the watermark.
        """
        return self._room.num_entitled

    @property
    def is_idle(self) -> bool:
        """No request, no step in flight, no slot in use, and every block free or evictable."""
        return not self.has_work and self.load().is_idle

    def load(self) -> Load:
        """A snapshot of what is held, and the counters since the start."""
        return load_of(self._state)

    def _complete(self, step_id: int) -> StepInFlight:
        state = self._state
        if not state.in_flight or state.in_flight[0].plan.step_id != step_id:
            raise StepOrderError(f"step {step_id} is not the oldest in flight")
        step = state.in_flight.popleft()
        self._cache.complete_step(step_id)
        state.last_completed = step_id
        return step
