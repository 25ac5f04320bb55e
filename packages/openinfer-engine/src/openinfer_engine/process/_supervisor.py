"""The supervisor of an engine process: starts it, watches it and restarts it when it dies.

starting --ready--> ready --it died--> restarting --ready--> ready
                                           └──starts failed──> dead
any --close, shutdown--> closed
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from openinfer_contract import (
    Command,
    CommandResult,
    EngineDead,
    EngineInfo,
    EventSink,
    GenerateRequest,
    Load,
    Ticket,
)
from openinfer_engine.errors import EngineStartError
from openinfer_engine.lines._model_line import LaunchSpec
from openinfer_engine.process._child_process import EngineChild, SpawnedEngine, spawn
from openinfer_engine.process._remote_engine import RemoteEngine
from openinfer_engine.process._start_messages import LINE_FACTORY, LogLevel, ProcessSpec

EngineState = Literal["starting", "ready", "restarting", "dead", "closed"]

_EXIT_WAIT_S = 2.0
"""Seconds that an engine may take to exit after its socket has closed."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """Timeouts in seconds, and when to give up on restarting."""

    step_timeout_s: float = 60.0
    """An engine with running requests that sends nothing for this long is killed and restarted."""
    start_silence_s: float | None = 600.0
    """A start without a progress message for this long has failed. None: no timeout."""
    max_failed_starts: int = 3
    """Failed restarts in a row after which the engine stays dead. A successful restart sets the
    count back to zero. 0: a dead engine is never restarted."""
    backoff_s: float = 0.5
    """Wait before the first restart. It doubles with each further restart."""
    max_backoff_s: float = 30.0
    """Upper bound of that wait."""
    healthy_s: float = 60.0
    """An engine that lived longer than this sets the wait back to `backoff_s`."""
    stop_s: float = 10.0
    """A closed engine that has not ended after this long is killed."""


class EngineSupervisor:
    """An `EngineHandle` over a child process that is restarted when it dies.

    Belongs to the event loop that called `start`. While there is no engine, `submit` raises
    EngineDead, `reason` explains why, and `load` is empty. Requests that were live when the engine
    died have ended with `Failed(is_retryable=True)`.

    Args:
        spec: what the engine shall run.
        factory: `module:function` of its `ExecutorFactory`; by default the model line's.
        listen: further addresses for other front processes, `unix:PATH` or `tcp:HOST:PORT`.
        options: timeouts and retries.
        log_level: log level of the engine process, which logs to stderr.
        on_progress: called with each line that the engine logs while it starts.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        *,
        factory: str = LINE_FACTORY,
        listen: Sequence[str] = (),
        options: SupervisorOptions | None = None,
        log_level: LogLevel = "info",
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self._spec = ProcessSpec(launch=spec, factory=factory, log_level=log_level)
        self._listen = tuple(listen)
        self._options = options or SupervisorOptions()
        self._on_progress = on_progress
        self._state: EngineState = "starting"
        self._reason = "the engine is starting"
        self._spawned: SpawnedEngine | None = None
        self._child: EngineChild | None = None
        self._info: EngineInfo | None = None
        self._num_restarts = 0
        self._watch: asyncio.Task[None] | None = None

    @property
    def state(self) -> EngineState:
        """The engine's state, as `/ready` and `/health` report it."""
        return self._state

    @property
    def reason(self) -> str:
        """Why the engine is not ready, in one sentence. If it is ready, the last such sentence."""
        return self._reason

    @property
    def num_restarts(self) -> int:
        """Attempts to restart the engine since `start`."""
        return self._num_restarts

    @property
    def addresses(self) -> tuple[str, ...]:
        """Further addresses the engine listens on, ports resolved; empty without an engine."""
        return self._child.addresses if self._child is not None else ()

    @property
    def info(self) -> EngineInfo:
        """Identity, limits and abilities of the engine, or of the last one."""
        assert self._info is not None, "the supervisor was not started"
        return self._info

    def spawn(self) -> None:
        """Starts the engine's process ahead of `start`.

        The caller can do other work meanwhile. Needs no event loop. Without a later `start`,
        `close` and `shutdown` end the process.

        Raises:
            EngineStartError: the system cannot start a process.
        """
        assert (self._spawned, self._child) == (None, None), "there is a process"
        self._spawned = spawn(self._spec, self._listen)

    async def start(self) -> EngineInfo:
        """Starts the engine and waits until it is ready. A failed first start is not retried.

        Raises:
            EngineStartError: the start failed; the message is the engine's own.
        """
        try:
            await self._start_child()
        except EngineStartError as error:
            self._state, self._reason = "dead", error.message
            raise
        self._watch = asyncio.create_task(self._keep_alive())
        return self.info

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Submits a request; see `EngineHandle.submit`.

        Raises:
            EngineDead: there is no engine at the moment.
        """
        self._engine().submit(request, sink)
        return Ticket(self, request.request_id)

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts requests; each still gets its last event. Unknown and finished ids are ignored."""
        if self._child is not None:
            self._child.engine.abort(request_ids)

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Runs a command between two steps. Fails with EngineDead while there is no engine."""
        if self._child is not None:
            return self._child.engine.control(command)
        future: Future[CommandResult] = Future()
        future.set_exception(EngineDead(self._reason))
        return future

    def load(self) -> Load:
        """Returns the latest known load; an empty one while there is no engine."""
        return self._child.engine.load() if self._child is not None else Load()

    def drain(self) -> "Future[None]":
        """Rejects new requests; the future completes when the last live one has ended."""
        if self._child is not None:
            return self._child.engine.drain()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def close(self) -> None:
        """Kills the engine process. Live requests fail. Idempotent. `shutdown` is graceful."""
        self._mark_closed()
        self._kill_spawned()
        child, self._child = self._child, None
        if child is not None:
            child.engine.disconnect()
            child.process.kill()
            child.process.wait()

    async def shutdown(self, drain_s: float = 0.0) -> None:
        """Drains for up to `drain_s` seconds and ends the engine; kills it if it does not end."""
        if self._child is not None and drain_s > 0:
            drained = asyncio.wrap_future(self._child.engine.drain())
            done, _ = await asyncio.wait([drained], timeout=drain_s)
            if done and (error := drained.exception()) is not None:
                _logger.warning("the engine ended while it drained: %s", error)
            drained.cancel()
        self._mark_closed()
        self._kill_spawned()
        if self._watch is not None:
            await asyncio.wait([self._watch])
        child, self._child = self._child, None
        if child is not None:
            await child.stop(self._options.stop_s)

    async def wait_dead(self) -> str:
        """Returns why the engine is dead for good, once restarting it has failed.

        It never returns if the supervisor is closed first.
        """
        assert self._watch is not None, "the supervisor was not started"
        await asyncio.wait([self._watch])
        if self._state != "dead":
            await asyncio.get_running_loop().create_future()
        return self._reason

    def _engine(self) -> RemoteEngine:
        if self._child is None:
            raise EngineDead(self._reason)
        return self._child.engine

    def _mark_closed(self) -> None:
        self._state, self._reason = "closed", "the engine was closed"
        if self._watch is not None:
            self._watch.cancel()

    def _kill_spawned(self) -> None:
        spawned, self._spawned = self._spawned, None
        if spawned is not None:
            spawned.kill()

    async def _start_child(self) -> None:
        spawned, self._spawned = self._spawned, None
        child = await EngineChild.start(
            self._spec,
            listen=self._listen,
            silence_s=self._options.start_silence_s,
            on_progress=self._on_progress,
            spawned=spawned,
        )
        self._child = child
        # Other clients know the port that the system chose, so a restarted engine keeps it.
        self._listen = child.addresses
        self._info = child.engine.info
        self._state = "ready"

    async def _keep_alive(self) -> None:
        """Restarts the engine whenever it dies; returns once restarting has failed for good."""
        loop = asyncio.get_running_loop()
        num_early_deaths = 0
        while self._child is not None:
            started_at = loop.time()
            reason = await self._watch_child(self._child)
            child, self._child = self._child, None
            self._state, self._reason = "restarting", reason
            status = await child.stop(_EXIT_WAIT_S if child.engine.is_dead else 0.0)
            self._reason = f"{reason} (exit status {status})"
            _logger.error("%s; restarting it", self._reason)
            is_early = loop.time() - started_at <= self._options.healthy_s
            num_early_deaths = num_early_deaths + 1 if is_early else 0
            await self._restart(max(0, num_early_deaths - 1))

    async def _restart(self, num_doublings: int) -> None:
        """Starts an engine, in several attempts if need be; `_child` is None if all have failed.

        Args:
            num_doublings: how often the first wait is doubled.
        """
        options = self._options
        for attempt in range(options.max_failed_starts):
            factor = 2.0 ** min(num_doublings + attempt, 32)
            await asyncio.sleep(min(options.backoff_s * factor, options.max_backoff_s))
            self._num_restarts += 1
            try:
                await self._start_child()
            except EngineStartError as error:
                self._reason = f"the engine does not start again: {error.message}"
                _logger.error("%s", self._reason)
            else:
                counted = "1 try" if attempt == 0 else f"{attempt + 1} tries"
                _logger.info("the engine is back after %s", counted)
                return
        self._state = "dead"
        _logger.error("the engine stays dead: %d starts in a row failed", options.max_failed_starts)

    async def _watch_child(self, child: EngineChild) -> str:
        """Waits until the engine is gone or hangs, and returns why.

        Silence is counted in ticks of this task, not in seconds: if the event loop itself was
        stopped, the engine must not be taken for hung.
        """
        engine = child.engine
        tick_s = min(1.0, self._options.step_timeout_s / 10)
        silence_s, heard = 0.0, engine.last_heard
        died = asyncio.ensure_future(engine.wait_dead())
        try:
            while silence_s < self._options.step_timeout_s:
                done, _ = await asyncio.wait([died], timeout=tick_s)
                if done:
                    return f"the engine has died: {died.result()}"
                is_owed = (engine.num_live or engine.load().num_running) and (
                    not engine.load().is_paused
                )
                has_spoken = engine.last_heard != heard
                silence_s = 0.0 if has_spoken or not is_owed else silence_s + tick_s
                heard = engine.last_heard
        finally:
            died.cancel()
        return f"the engine made no step for {self._options.step_timeout_s:.0f} s"
