"""The state machine: add, plan, apply."""

import secrets
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from openinfer_contract import GenerateRequest, Load, Rejected
from openinfer_kv_cache import KVCache
from openinfer_scheduler._config import SchedulerConfig
from openinfer_scheduler._fcfs import FCFS
from openinfer_scheduler._plan import StepPlan, StepResult
from openinfer_scheduler._planner import Planner
from openinfer_scheduler._policy import Policy
from openinfer_scheduler._sequence import SequenceState
from openinfer_scheduler._settle import Effects, settle
from openinfer_scheduler._slots import Slots
from openinfer_scheduler._state import SchedulerState, StepInFlight
from openinfer_scheduler.errors import StepOrderError

_SEED_MASK = 2**64 - 1
_MAX_ENDED_DEADLINES = 64


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
    """

    def __init__(
        self, config: SchedulerConfig, cache: KVCache, policy: Policy | None = None
    ) -> None:
        self._config = config
        self._cache = cache
        self._num_blocks = cache.stats().num_blocks
        self._state = SchedulerState(config=config, cache=cache, slots=Slots(config.max_num_seqs))
        self._planner = Planner(self._state, policy if policy is not None else FCFS())
        self._deadlines: list[tuple[float, int, SequenceState]] = []
        self._num_added = 0
        self._num_seeds = 0
        self._seed = secrets.randbits(64) if config.seed is None else config.seed
        self._eos_ids = frozenset(config.eos_token_ids)

    def add(self, request: GenerateRequest, now: float) -> Rejected | None:
        """Queues a request, or says why not. Costs microseconds.

        Checks what only the scheduler knows: a live request of the same id (duplicate), a full
        intake (overloaded), a sequence that could never fit the pool or `max_model_len`
        (too_long). `openinfer_contract.check_request` checks the rest, before.
        """
        rejected = self._rejection(request)
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
            arrival=now if request.arrival is None else request.arrival,
            arrival_index=self._num_added,
            seed=self._next_seed() if request.sampling.seed is None else request.sampling.seed,
            max_total=self._max_total(request),
            stop_ids=stop_ids,
        )
        self._num_added += 1
        state.live[request.request_id] = sequence
        state.waiting.push(sequence)
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, sequence.arrival_index, sequence))
            self._forget_ended_deadlines()
        return None

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
        state, deadlines = self._state, self._deadlines
        effects: Effects = []
        while deadlines and deadlines[0][0] <= now:
            _, _, sequence = heappop(deadlines)
            if not sequence.is_ended:
                message = f"the deadline passed after {sequence.num_output_tokens} output tokens"
                failed = state.fail(sequence, message, is_retryable=False)
                effects.append(state.event(sequence, failed))
        return effects

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
        means that nothing is live. A plan may have no rows; it is run like any other.

        Raises:
            PolicyError: the policy broke its contract; nothing has been planned then.
        """
        state = self._state
        if len(state.in_flight) >= self._config.depth:
            return None
        if not (state.running or state.waiting or state.slots.has_over):
            return None
        step = self._planner.plan(now)
        return None if step is None else step.plan

    def apply(self, result: StepResult, now: float) -> Effects:
        """Settles the oldest step in flight: appends tokens, finishes sequences, frees blocks.

        A row that failed alone (say, with NaN logits) may have left garbage in blocks that others
        would find: the prefix cache is forgotten as in `fail`.

        Raises:
            StepOrderError: `result` is not of the oldest step in flight.
            ValueError: the result does not fit the plan; the scheduler is of no further use.
        """
        step = self._complete(result.step_id)
        if result.failed:
            self._distrust_cache()
        return settle(self._state, step, result, now)

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
        self._distrust_cache()
        effects: Effects = []
        for stay in step.stays:
            if stay.is_settling:
                sequence = stay.sequence
                failed = state.fail(sequence, message, is_retryable=True)
                effects.append(state.event(sequence, failed))
        state.requeue_settled(step_id)
        return effects

    def _forget_ended_deadlines(self) -> None:
        """Keeps few of the ended requests beside the live ones; constant time on average."""
        if len(self._deadlines) > 2 * len(self._state.live) + _MAX_ENDED_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_ended]
            heapify(self._deadlines)

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
    def is_idle(self) -> bool:
        """No request, no step in flight, no slot in use, and every block free or evictable."""
        return not self.has_work and self.load().is_idle

    def load(self) -> Load:
        """A snapshot of what is held, and the counters since the start."""
        state, stats = self._state, self._cache.stats()
        counters = state.counters
        return Load(
            step_id=state.next_step - 1,
            num_running=len(state.running) + len(state.settling),
            num_waiting=len(state.waiting),
            num_waiting_tokens=state.waiting.num_tokens,
            num_total_blocks=stats.num_blocks,
            num_free_blocks=stats.num_free,
            num_evictable_blocks=stats.num_evictable,
            num_pinned_blocks=stats.num_pinned,
            num_open_leases=stats.num_open_leases,
            num_slots=state.slots.num_used,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_cached_tokens=counters.num_cached_tokens,
            num_output_tokens=counters.num_output_tokens,
            num_finished=counters.num_finished,
            num_preemptions=counters.num_preemptions,
            num_rejected=counters.num_rejected,
            num_failed=counters.num_failed,
        )

    def _complete(self, step_id: int) -> StepInFlight:
        state = self._state
        if not state.in_flight or state.in_flight[0].plan.step_id != step_id:
            raise StepOrderError(f"step {step_id} is not the oldest in flight")
        step = state.in_flight.popleft()
        self._cache.complete_step(step_id)
        state.last_completed = step_id
        return step

    def _rejection(self, request: GenerateRequest) -> Rejected | None:
        config, waiting = self._config, self._state.waiting
        if request.request_id in self._state.live:
            return Rejected(
                kind="duplicate",
                field="request_id",
                message=f"request {request.request_id!r} is live already",
            )
        num_prompt = request.num_prompt_tokens
        most = config.max_model_len
        if num_prompt >= most:
            return _too_long(
                f"the prompt has {num_prompt} tokens; this engine takes at most {most - 1} and "
                f"generates up to a total of {most}"
            )
        max_total = self._max_total(request)
        if not 0 <= request.num_output_prefix < min(num_prompt, request.stop.max_tokens):
            return Rejected(
                kind="invalid",
                field="num_output_prefix",
                message=f"{num_prompt} prompt tokens, {request.num_output_prefix} of them output, "
                f"and max_tokens {request.stop.max_tokens} leave nothing to read or to generate",
            )
        num_needed = self._cache.num_blocks_for(max_total - 1)
        if num_needed > self._num_blocks:
            return _too_long(
                f"{num_prompt} prompt tokens and {max_total - num_prompt} to generate need "
                f"{num_needed} cache blocks; this engine has {self._num_blocks}"
            )
        if len(waiting) >= config.max_queued_requests or (
            waiting and waiting.num_tokens + num_prompt > config.max_queued_tokens
        ):
            return Rejected(
                kind="overloaded",
                message=f"{len(waiting)} requests with {waiting.num_tokens} tokens are waiting",
                retry_after_s=config.overload_retry_after_s,
            )
        return None

    def _max_total(self, request: GenerateRequest) -> int:
        """Known tokens at which the request is over."""
        full = request.num_prompt_tokens - request.num_output_prefix + request.stop.max_tokens
        return min(full, self._config.max_model_len)

    def _next_seed(self) -> int:
        """Consecutive seeds, scattered (the finalizer of splitmix64)."""
        self._num_seeds += 1
        bits = (self._seed + self._num_seeds * 0x9E3779B97F4A7C15) & _SEED_MASK
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _SEED_MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _SEED_MASK
        return bits ^ (bits >> 31)


def _too_long(message: str) -> Rejected:
    return Rejected(kind="too_long", field="prompt_token_ids", message=message)
