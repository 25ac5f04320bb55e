"""The step loop: intake, plan, launch, wait, settle, deliver; commands between steps.

One iteration is `EngineLoop.step`. A host that does the I/O calls it over and over: the engine
process (`process/_server.py`) or a thread (`_in_process.py`). With two steps in flight the
iterations interleave as

    launch n+1 -> wait n -> settle n, deliver n -> (host: intake) -> plan n+2, launch n+2 -> ...

so that the device has a step to run while the host settles the one before. A step is sampled as
soon as it is launched, unless it has rows with a grammar. Their masks depend on the tokens of the
step before, so that step is settled first, and the masks are filled during the forward pass:

    launch n+1 -> wait n -> settle n, deliver n -> masks n+1, sample n+1 -> (host) -> plan n+2 ...
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from openinfer_contract import (
    AddSpans,
    Command,
    CommandDone,
    CommandFailed,
    CommandResult,
    EngineInfo,
    EventSink,
    Failed,
    GenerateRequest,
    GetLoad,
    Load,
    ResetPrefixCache,
    StartTrace,
    StopTrace,
    TokenEvent,
    command_name,
)
from openinfer_engine._executor import CompilingExecutor, Executor
from openinfer_engine.errors import ExecutorDead, StepFailed
from openinfer_engine.loop._command_queue import CommandQueue, Reply
from openinfer_engine.loop._event_sinks import EventSinks
from openinfer_engine.loop._grammar_queue import GrammarQueue
from openinfer_engine.loop._kv_events import KVEventFlusher, Replay
from openinfer_engine.loop._request_intake import RequestIntake
from openinfer_engine.trace._trace_control import TraceControl
from openinfer_scheduler import Effects, Scheduler, StepPlan

LOOP_COMMANDS = frozenset(
    {"get_load", "reset_prefix_cache", "pause", "resume", "start_trace", "stop_trace", "add_spans"}
)
"""Commands that the loop runs itself, over any executor."""

STALLED_WAIT_S = 0.05
_COMPILING_WAIT_S = 0.001

_logger = logging.getLogger(__name__)


class EngineLoop:
    """Drives one scheduler and one executor. The step thread calls every method.

    Args:
        executor: runs the steps; closed by `close`.
        scheduler: plans the steps; owned by the loop from now on.
        info: identity and limits that requests are checked against.
        clock: monotonic seconds.
        kv_events: flushed after each step and closed by `close`; None: no KV events.
        grammars: closed by `close`; None: requests cannot have grammars.
        trace_dir: folder for traces whose `StartTrace` names no file; None: such commands fail.
        trace_max_bytes: upper bound of a trace's size, unless its `StartTrace` sets another one.
        raises_policy_errors: whether a `PolicyError` ends the loop, for simulations that score a
            policy. Otherwise the loop logs it and falls back to first come, first served.

    Raises:
        TraceFailed: the trace folder does not exist.

    Attributes:
        info: the engine's identity, limits and abilities.
        step_id: id of the last completed step.
        has_device: whether steps run on a device, so that a host core is free meanwhile.
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        info: EngineInfo,
        clock: Callable[[], float] = time.monotonic,
        kv_events: KVEventFlusher | None = None,
        grammars: GrammarQueue | None = None,
        *,
        trace_dir: str | None = None,
        trace_max_bytes: int = 256 << 20,
        raises_policy_errors: bool = False,
    ) -> None:
        self.info = info
        self.step_id = 0
        self.has_device = executor.info.has_device
        self._executor = executor
        self._scheduler = scheduler
        self._clock = clock
        self._kv_events = kv_events
        self._grammars = grammars
        self._traces = TraceControl(executor, clock, self.load, trace_dir, trace_max_bytes)
        self._depth = executor.info.depth
        self._raises_policy_errors = raises_policy_errors
        self._in_flight: deque[int] = deque()
        self._sinks = EventSinks(grammars, self._traces)
        self._commands = CommandQueue(
            has_live=lambda: scheduler.has_work or self._intake.has_live,
            abort_live=self._abort_live,
            submit_held=lambda: self._intake.submit_paused(),
            load=self.load,
            run_command=self._run_command,
        )
        self._intake = RequestIntake(scheduler, info, self._sinks, grammars, self._commands)
        self._drain_replies: list[Callable[[], None]] = []
        self._death: str | None = None

    @property
    def has_work(self) -> bool:
        """Whether to call `step`: a request is live, a command waits, or a step is in flight."""
        return bool(self._in_flight or self._sinks or self._commands or self._drain_replies) or (
            self._scheduler.has_work and not self._commands.is_paused
        )

    @property
    def stalled_wait_s(self) -> float:
        """Upper bound of seconds that the host waits for input if `step` found nothing to do."""
        is_compiling = self._grammars is not None and self._grammars.is_compiling
        return _COMPILING_WAIT_S if is_compiling else STALLED_WAIT_S

    @property
    def replay(self) -> Replay | None:
        """The replay endpoint of KV events. The host must serve it. None if not configured."""
        return None if self._kv_events is None else self._kv_events.replay

    @property
    def is_tracing(self) -> bool:
        """Whether a trace is being written."""
        return self._traces.is_on

    def submit(self, request: GenerateRequest, sink: EventSink) -> None:
        """Takes a request in, or tells its sink why it is rejected."""
        if self._death is not None:
            sink(TokenEvent(end=Failed(message=self._death, is_retryable=True)))
            return
        now = self._clock()
        rejected = self._intake.take(request, now)
        if rejected is None:
            self._sinks.open(request.request_id, sink)
            self._traces.steps.arrived(request, now)
        else:
            sink(TokenEvent(end=rejected))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Aborts requests. Unknown ids are ignored."""
        if self._death is not None:
            return
        now = self._clock()
        ids = tuple(request_ids)
        for request_id in ids:
            self._intake.submit_held(request_id)
        self._sinks.deliver(self._scheduler.abort(ids, now))

    def control(self, command: Command, reply: Reply) -> None:
        """Runs a command once no step is in flight, in order of arrival.

        Args:
            command: the command.
            reply: called with its result.
        """
        name = command_name(command)
        if name not in self.info.commands:
            reply(CommandFailed(kind="unsupported", message=f"{name} is not supported here"))
        elif isinstance(command, GetLoad):
            reply(CommandDone(load=self.load()))
        elif isinstance(command, AddSpans):
            self._traces.add(command, is_idle=not self._sinks)
            reply(CommandDone())
        else:
            self._commands.put(command, reply)

    def drain(self, reply: Callable[[], None]) -> None:
        """Rejects new requests, and calls `reply` once the live ones have ended. Ends a pause."""
        self._commands.drain()
        self._drain_replies.append(reply)

    def load(self) -> Load:
        """Returns the present load."""
        load, events, executor = self._scheduler.load(), self._kv_events, self._executor
        return replace(
            load,
            num_waiting=load.num_waiting + len(self._intake),
            num_waiting_tokens=load.num_waiting_tokens + self._intake.num_tokens,
            num_rejected=self._intake.num_rejected,
            is_paused=self._commands.is_paused,
            is_draining=self._commands.is_draining,
            num_kv_event_batches=0 if events is None else events.num_batches,
            num_dropped_kv_event_batches=0 if events is None else events.num_dropped,
            is_tracing=self.is_tracing,
            num_compilations=(
                executor.num_compilations if isinstance(executor, CompilingExecutor) else 0
            ),
        )

    def step(self) -> bool:
        """Runs one iteration: at most one launch and one wait.

        Returns:
            Whether anything was done. If not, the host may wait for input for `stalled_wait_s`.

        Raises:
            ExecutorDead: the executor cannot continue. For this and any other exception, call
                `die`.
        """
        now = self._clock()
        self._traces.steps.resume()
        self._expire(now)
        self._intake.submit_compiled()
        has_run_commands = bool(self._commands) and not self._in_flight and self._commands.run(now)
        is_launched = self._commands.may_plan and self._launch(now)
        self._traces.write(is_idle=not self._sinks)
        has_waited = bool(self._in_flight) and (
            not is_launched or len(self._in_flight) >= self._depth
        )
        if has_waited:
            self._complete()
        if self._kv_events is not None:
            self._kv_events.flush()
        if self._drain_replies and not self._sinks and not self._scheduler.has_work:
            replies, self._drain_replies = self._drain_replies, []
            for reply in replies:
                reply()
        return is_launched or has_waited or has_run_commands

    @property
    def num_skippable_steps(self) -> int:
        """Number of steps after the step in flight that will only decode the same rows.

        It is 0 if something observes single steps, such as a trace or KV events. A simulator whose
        executor returns nothing but tokens may compute that many steps at once. It reports them
        with `skip_decode_steps` instead of calling `step` for each.
        """
        is_watched = self._kv_events is not None or self.is_tracing or self._drain_replies
        commands = self._commands
        is_held_up = commands.is_settling or commands.is_paused or commands or len(self._intake)
        if is_watched or is_held_up or self._grammars is not None:
            return 0
        return self._scheduler.num_skippable_steps

    def skip_decode_steps(self, columns: Sequence[bytes], num_steps: int) -> None:
        """Settles `num_steps` further steps that only decode the rows of the step in flight.

        The effect is that of `num_steps` calls of `step`, except that each request gets one event
        with all its tokens.

        Args:
            columns: For each row, the `num_steps` tokens of the completed steps as a u32 column.
            num_steps: Number of steps, from 1 to `num_skippable_steps`.
        """
        newest = self._in_flight.popleft() + num_steps
        self._in_flight.append(newest)
        self.step_id = newest - 1
        self._sinks.deliver(self._scheduler.skip_decode_steps(columns, num_steps, self._clock()))

    def start_trace(self, command: StartTrace) -> None:
        """Starts a trace before the first step. Later, `control` does that.

        Raises:
            TraceFailed: the file cannot be created.
        """
        self._traces.start(command)

    def prepare(self) -> bool:
        """Calls `Executor.prepare`, if the engine is idle.

        Returns:
            Whether a further call may have more work to do.
        """
        return not self.has_work and self._executor.prepare()

    def die(self, error: Exception) -> str:
        """Logs an error of `step`, fails every live and later request, and returns the reason."""
        if isinstance(error, ExecutorDead):
            reason = f"the executor has died: {error}"
            _logger.error("%s", reason)
            self._sinks.deliver(self._scheduler.fail_all(reason, self._clock()))
        else:
            reason = f"the engine has failed with {type(error).__name__}"
            _logger.error("%s", reason, exc_info=error)
        self.fail_all(reason)
        return reason

    def fail_all(self, reason: str) -> None:
        """Fails every live request and every later one, retryably."""
        self._death = reason
        self._sinks.fail_all(reason)

    def close(self) -> None:
        """Closes the executor, the traces, the grammars and the KV events. Idempotent."""
        self._traces.close()
        if self._kv_events is not None:
            self._kv_events.close()
        if self._grammars is not None:
            self._grammars.close()
        self._executor.close()

    def _launch(self, now: float) -> bool:
        trace, plan = self._traces.steps, self._plan(now)
        if plan is None:
            trace.resume()
            return False
        trace.planned(plan)
        ticket = self._executor.launch(plan)
        trace.mark(ticket, "launch")
        self._in_flight.append(ticket)
        grammars = self._grammars
        if grammars is not None and grammars.has_constraints and grammars.track_slots(plan):
            self._sample_masked(plan, grammars)
        else:
            self._executor.sample(ticket, {})
            trace.mark(ticket, "sample")
        return True

    def _plan(self, now: float) -> StepPlan | None:
        plan = self._scheduler.plan(now)
        error = self._scheduler.take_policy_error()
        if error is not None:
            if self._raises_policy_errors:
                raise error
            _logger.error(
                "%s; until the engine is started again, requests are served first come, first "
                "served",
                error,
                exc_info=error.__cause__,
            )
        return plan

    def _sample_masked(self, plan: StepPlan, grammars: GrammarQueue) -> None:
        """Samples the newest step with masks, after settling the step before it."""
        while self._in_flight[0] != plan.step_id:
            self._complete()
        masks, failures = grammars.fill_masks(plan)
        self._traces.steps.mark(plan.step_id, "masks")
        self._executor.sample(plan.step_id, masks)
        self._traces.steps.mark(plan.step_id, "sample")
        self._fail_grammars(failures)

    def _advance_grammars(self, effects: Effects, grammars: GrammarQueue) -> None:
        """Advances grammars by the sampled tokens, and appends tokens that they force."""
        self._fail_grammars(grammars.advance(effects))
        now = self._clock()
        for request_id, token_ids in grammars.forced_tokens(effects):
            given = self._scheduler.force(request_id, token_ids, now)
            failures = grammars.advance(given)
            self._sinks.deliver(given)
            self._fail_grammars(failures)

    def _fail_grammars(self, failures: Mapping[str, str]) -> None:
        """Fails requests whose grammar cannot continue. Other requests are not affected."""
        if failures:
            now = self._clock()
            self._sinks.deliver(self._scheduler.fail_some(failures, now, field="grammar"))

    def _complete(self) -> None:
        ticket, trace = self._in_flight[0], self._traces.steps
        self.step_id = ticket
        try:
            result = self._executor.wait(ticket)
        except StepFailed as error:
            _logger.error("step %d has failed: %s", ticket, error)
            trace.mark(ticket, "wait")
            self._in_flight.popleft()
            self._sinks.deliver(self._scheduler.fail(ticket, str(error), self._clock()))
            trace.completed(ticket, str(error))
            return
        trace.waited(ticket)
        self._in_flight.popleft()
        effects = self._scheduler.apply(result, self._clock())
        self._sinks.deliver(effects)
        if self._grammars is not None and self._grammars.has_constraints:
            self._advance_grammars(effects, self._grammars)
        trace.completed(ticket)

    def _abort_live(self, now: float) -> None:
        self._intake.submit_live()
        self._sinks.deliver(self._scheduler.abort_all(now))

    def _expire(self, now: float) -> None:
        """Fails requests past their deadline, including held ones."""
        self._intake.submit_expired(now)
        self._sinks.deliver(self._scheduler.expire(now))

    def _run_command(self, command: Command) -> CommandResult:
        """Runs a command while no step is in flight."""
        if isinstance(command, StartTrace | StopTrace):
            return self._traces.run_command(command)
        if isinstance(command, ResetPrefixCache):
            self._scheduler.reset_prefix_cache()
            return CommandDone(load=self.load())
        return self._executor.control(command)
