"""The scheduler: add requests, plan steps, apply their results."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from openinfer_contract import GenerateRequest, Load, Rejected
from openinfer_kv_cache import KVCache, SequenceCache
from openinfer_scheduler._config import SchedulerConfig
from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler._load import load_of
from openinfer_scheduler._policy import Policy, check_policy
from openinfer_scheduler._policy_loading import default_policy
from openinfer_scheduler._step_plan import StepPlan, StepResult
from openinfer_scheduler.admit._capacity_check import CapacityCheck
from openinfer_scheduler.admit._intake import PROMPT_NOT_CACHED, Intake
from openinfer_scheduler.errors import PolicyError, StepOrderError
from openinfer_scheduler.plan._planner import Planner
from openinfer_scheduler.plan._prefill_pace import PrefillPace
from openinfer_scheduler.plan._step_skipping import num_skippable_steps, skip_decode_steps
from openinfer_scheduler.settle._forced_tokens import force
from openinfer_scheduler.settle._settle import Effects, own_faults, settle
from openinfer_scheduler.state._adapter_slots import AdapterSlots
from openinfer_scheduler.state._prefix_probe import PrefixProbe
from openinfer_scheduler.state._scheduler_state import SchedulerState, StepInFlight
from openinfer_scheduler.state._seeds import Seeds
from openinfer_scheduler.state._sequence import SequenceState
from openinfer_scheduler.state._service_accounts import ServiceAccounts
from openinfer_scheduler.state._slots import Slots


class Scheduler:
    """Admission, continuous batching, chunked prefill and preemption over one cache.

    Deterministic: it has no clock, does no I/O and starts no threads. Call it from one thread.
    `now` is `time.monotonic()` in seconds and must never decrease.

    A request is *waiting* (no slot, no blocks) until a plan starts it, *running* until its last
    token is applied, and waiting again after a preemption. A plan is *in flight* until it is
    applied or failed, oldest first.

    With several plans in flight, a decode row is planned before its last token is known. Ends by
    length are known in advance and planned for. After a stop, an abort or a failure, the sequence
    may still have rows in flight: their tokens are dropped, and its blocks are released when the
    last of those steps has completed. A sequence that is preempted with rows in flight is in no
    later plan. Its tokens in flight still count and are emitted; with the last of them it returns
    to the queue.

    Args:
        config: limits and switches.
        cache: the cache; this scheduler must be its only user.
        policy: decides order, chunk sizes and victims. None: the policy named `fcfs`.
        closing: called with the blocks of a sequence that ends or is preempted, before they are
            released. A tier saves them then.

    Raises:
        TypeError: `policy` is a class, or lacks a method of `Policy`.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        policy: Policy | None = None,
        *,
        closing: Callable[[SequenceCache], None] | None = None,
    ) -> None:
        policy = default_policy() if policy is None else policy
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
            accounts=ServiceAccounts(guarded),
            closing=closing,
        )
        self._intake = Intake(self._state)
        target_s = config.target_itl_s
        self._pace = None if target_s is None else PrefillPace(target_s)
        self._capacity = CapacityCheck(self._state)
        self._planner = Planner(self._state, guarded, self._pace, self._capacity)
        self._last_completed_at = -math.inf
        self._num_added = 0
        self._seeds = Seeds(config.seed)
        self._eos_ids = frozenset(config.eos_token_ids)

    def add(
        self, request: GenerateRequest, now: float, *, is_loading: bool = False
    ) -> Rejected | None:
        """Queues a request, or returns why it is rejected. Costs microseconds.

        Checks what only the scheduler knows: whether a request with this id is live (duplicate),
        the queue is full (overloaded), the sequence could never fit the pool or `max_model_len`
        (too_long), or the engine's role does not serve it (unsupported, unavailable). Call
        `openinfer_contract.check_request` first: it checks everything else.

        Args:
            request: the request.
            now: monotonic seconds.
            is_loading: whether a tier is loading blocks of its prefix. The request then waits until
                `loaded`, and others pass it.
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
            return Rejected(kind="unsupported", field="kv_transfer", message=PROMPT_NOT_CACHED)
        sequence.is_loading = is_loading
        self._num_added += 1
        state.live[request.request_id] = sequence
        state.enqueue(sequence)
        state.deadlines.add(sequence)
        return None

    def loaded(self, request_ids: Iterable[str], now: float) -> Effects:
        """Marks requests whose loads from a tier have ended. Missing blocks are computed.

        Ignores unknown ids and requests that were not loading. On an engine that only decodes, a
        request whose prompt is still not cached (see `SchedulerConfig.role`) fails as retryable, so
        that the client has it prefilled again.
        """
        state = self._state
        effects: Effects = []
        for request_id in request_ids:
            sequence = state.live.get(request_id)
            if sequence is None or not sequence.is_loading:
                continue
            sequence.is_loading = False
            state.admission_epoch += 1
            if self._intake.lacks_prompt(sequence):
                failed = state.fail(sequence, PROMPT_NOT_CACHED, is_retryable=True)
                effects.append(state.end_event(sequence, failed))
        return effects

    def abort(self, request_ids: Iterable[str], now: float) -> Effects:
        """Ends live requests with `Finished(reason="abort")`; ignores unknown ids.

        Later plans do not contain them. Tokens that steps in flight sample for them are dropped,
        and their blocks are released when those steps have completed.
        """
        state = self._state
        effects: Effects = []
        for request_id in request_ids:
            sequence = state.live.get(request_id)
            if sequence is not None:
                effects.append(state.end_event(sequence, state.finish(sequence, "abort", now)))
        return effects

    def abort_all(self, now: float) -> Effects:
        """Aborts every live request."""
        return self.abort(list(self._state.live), now)

    def expire(self, now: float) -> Effects:
        """Fails every request whose deadline has passed. Takes constant time if there is none."""
        state = self._state
        effects: Effects = []
        for sequence in state.deadlines.passed(now):
            message = f"the deadline passed after {sequence.num_output_tokens} output tokens"
            failed = state.fail(sequence, message, is_retryable=False, field="deadline")
            effects.append(state.end_event(sequence, failed))
        return effects

    def fail_some(self, messages: Mapping[str, str], now: float, *, field: str = "") -> Effects:
        """Ends live requests with Failed; ignores unknown ids.

        Args:
            messages: why each request fails, by request id.
            now: monotonic seconds.
            field: `Failed.field`, if a field of the request is at fault.
        """
        state = self._state
        effects: Effects = []
        for request_id, message in messages.items():
            sequence = state.live.get(request_id)
            if sequence is not None:
                failed = state.fail(sequence, message, is_retryable=False, field=field)
                effects.append(state.end_event(sequence, failed))
        return effects

    def force(self, request_id: str, token_ids: bytes, now: float) -> Effects:
        """Appends output tokens to a running request without sampling them.

        Its next row forwards them together, after the token sampled last. Samples of its rows in
        flight are ignored. Call it between an `apply` that settled tokens of the request and the
        next `plan`, for a request without drafts and without logprobs. Rows in flight must not be
        able to sample anything else: their masks allow these tokens alone.

        Args:
            request_id: a live request. Nothing is done if it is preempted now, or has more rows in
                flight than tokens given.
            token_ids: u32 column, at least one id. Stops and the length limit apply as for sampled
                tokens. With a window group in the cache, at most one chunk of tokens is taken; the
                effects say how many.
            now: monotonic seconds.
        """
        sequence = self._state.live[request_id]
        event = force(self._state, sequence, token_ids, now)
        return [] if event is None else [(request_id, event)]

    def fail_all(self, message: str, now: float) -> Effects:
        """Ends every live request with Failed. Steps in flight are applied or failed as usual."""
        state = self._state
        return [
            state.end_event(sequence, state.fail(sequence, message, is_retryable=True))
            for sequence in list(state.live.values())
        ]

    def plan(self, now: float) -> StepPlan | None:
        """Returns the next step, or None if nothing can run now or `depth` plans are in flight.

        After None with a step in flight, apply that step and ask again. None without a step in
        flight means that no request is live, or that all live ones wait for a tier: for a load, or
        for blocks that copies to a tier hold. A plan may have no rows; run it like any other.

        A policy that raises or breaks its contract does not end the plan, see
        `take_policy_error`.
        """
        state = self._state
        if len(state.in_flight) >= self._config.depth:
            return None
        if not (state.running or state.waiting or state.slots.has_unannounced_ends):
            return None
        step = self._planner.plan(now)
        return None if step is None else step.plan

    def take_policy_error(self) -> PolicyError | None:
        """Returns the error of a policy that was at fault since the last call, else None.

        The scheduler has replaced the policy by the default one, first come, first served, for the
        rest of that plan and for all later ones. So there is at most one error.
        """
        return self._policy.take_error()

    def apply(self, result: StepResult, now: float) -> Effects:
        """Settles the oldest step in flight: appends tokens, finishes sequences, releases blocks.

        If a single row failed (say, with NaN logits), it may have left garbage in blocks that other
        requests would hit, so the prefix cache is reset as in `fail`. It is not reset if the
        request itself had banned every token: otherwise any client could reset the cache.

        Raises:
            StepOrderError: `result` is not of the oldest step in flight.
            ValueError: the result does not fit the plan; the scheduler cannot be used any more.
        """
        step = self._complete(result.step_id)
        if self._pace is not None and step.tenancies:
            duration_s = now - max(step.planned_at, self._last_completed_at)
            self._pace.record(step.num_prefill_tokens, duration_s, has_decode=step.num_decode > 0)
        self._last_completed_at = now
        faults = own_faults(step, result) if result.failed else {}
        if len(faults) < len(result.failed):
            self._reset_cache_after_failure()
        return settle(self._state, step, result, now, faults)

    @property
    def num_skippable_steps(self) -> int:
        """Number of steps after the step in flight that will only decode the same rows; often 0.

        In these steps no request waits, no row needs a block, and no token can end a request.
        """
        is_fixed = (
            self._config.depth == 2
            and self._pace is None
            and not self._capacity.counts_promises
            and not self._state.deadlines
        )
        return num_skippable_steps(self._state) if is_fixed else 0

    def skip_decode_steps(self, columns: Sequence[bytes], num_steps: int, now: float) -> Effects:
        """Plans and applies many steps at once that only decode the rows of the step in flight.

        Meant for simulations, where it saves most of the run time. It has the effect of `num_steps`
        calls of `plan` and `apply`: the step in flight and all new ones except the last are
        applied, and the last is in flight then.

        Args:
            columns: For each row of the step in flight, its `num_steps` tokens as a u32 column.
            num_steps: Number of new steps, from 1 to `num_skippable_steps`.
            now: Time at which the last of the applied steps completed, monotonic seconds.

        Returns:
            One event for each row, with all its tokens.

        Raises:
            StepOrderError: `num_steps` is out of bounds.
        """
        limit = self.num_skippable_steps
        if not 0 < num_steps <= limit:
            raise StepOrderError(
                f"num_steps={num_steps} must be from 1 to num_skippable_steps={limit}"
            )
        effects = skip_decode_steps(self._state, columns, num_steps)
        self._last_completed_at = now
        return effects

    def fail(self, step_id: int, message: str, now: float) -> Effects:
        """Ends every request with a row in the oldest step in flight, because that step failed.

        The prefix cache is reset, because blocks that the step should have filled may be in it.
        Sequences that started on such blocks in a later step in flight are recomputed from their
        known tokens. All other requests continue.

        Raises:
            StepOrderError: `step_id` is not the oldest step in flight.
        """
        state = self._state
        step = self._complete(step_id)
        self._last_completed_at = now
        self._reset_cache_after_failure()
        effects: Effects = []
        for tenancy in step.tenancies:
            if tenancy.is_settling:
                sequence = tenancy.sequence
                failed = state.fail(sequence, message, is_retryable=True)
                effects.append(state.end_event(sequence, failed))
        state.requeue_settled(step_id)
        return effects

    def _reset_cache_after_failure(self) -> None:
        """Resets the prefix cache; restarts sequences in flight that started on a prefix hit."""
        state = self._state
        self._cache.reset()
        for later in state.in_flight:
            for tenancy in later.started:
                if tenancy.is_settling and tenancy.cache.num_cached_tokens:
                    state.restart(tenancy)

    def reset_prefix_cache(self) -> None:
        """Drops every block from the prefix cache. Running sequences keep theirs."""
        self._cache.reset()

    @property
    def has_work(self) -> bool:
        """Whether a request is live, a step is in flight, or an ended slot is still unannounced."""
        state = self._state
        return bool(state.live or state.in_flight or state.slots.has_unannounced_ends)

    @property
    def num_in_flight(self) -> int:
        """Number of plans that were neither applied nor failed yet."""
        return len(self._state.in_flight)

    @property
    def num_entitled_blocks(self) -> int:
        """Blocks, or slabs, that loads from tiers must leave to running sequences.

        With lifetime admission, all blocks that running sequences may ever need. With optimistic
        admission, blocks for the rest of their prompts and their next tokens, plus the watermark.
        """
        return self._capacity.num_entitled

    @property
    def is_idle(self) -> bool:
        """Whether there is no request, step in flight or used slot, and no block is held."""
        return not self.has_work and self.load().is_idle

    def load(self) -> Load:
        """Returns the requests, blocks and slots in use now, and the counters since the start."""
        return load_of(self._state)

    def _complete(self, step_id: int) -> StepInFlight:
        state = self._state
        if not state.in_flight or state.in_flight[0].plan.step_id != step_id:
            raise StepOrderError(f"step {step_id} is not the oldest in flight")
        step = state.in_flight.popleft()
        self._cache.complete_step(step_id)
        state.last_completed = step_id
        return step
