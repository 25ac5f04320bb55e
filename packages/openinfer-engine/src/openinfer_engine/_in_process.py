"""An engine in this process: the step loop on a thread of its own."""

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from openinfer_contract import (
    Command,
    CommandResult,
    EngineDead,
    EngineInfo,
    EventSink,
    GenerateRequest,
    Load,
    Rejected,
    StreamState,
    Ticket,
    TokenEvent,
)
from openinfer_engine._assembly import assemble, check_options
from openinfer_engine._executor import Executor
from openinfer_engine.flags._engine_options import EngineOptions
from openinfer_engine.loop._engine_loop import EngineLoop
from openinfer_engine.loop._load_meter import LoadMeter

_QUIET_S = 0.1
"""After this many idle seconds the engine does optional work."""

_logger = logging.getLogger(__name__)

_Task = Callable[[EngineLoop], None]


class _CheckedSink:
    """Checks the order of a request's events, and aborts the request if its sink raises."""

    __slots__ = ("_abort", "_request_id", "_sink", "_state")

    def __init__(
        self, request_id: str, sink: EventSink, abort: Callable[[Iterable[str]], None]
    ) -> None:
        self._request_id = request_id
        self._sink = sink
        self._abort = abort
        self._state = StreamState(request_id)

    def __call__(self, event: TokenEvent, /) -> None:
        self._state.advance(event)
        try:
            self._sink(event)
        except Exception:
            _logger.exception("the sink of request %r has failed", self._request_id)
            self._abort((self._request_id,))


class InProcessEngine:
    """An `EngineHandle` whose step thread runs in this process, for notebooks, tests and batches.

    Methods may be called from any thread; sinks are called from the step thread. Other busy threads
    slow the steps down, because they share the GIL; servers therefore use an engine process. The
    garbage collector keeps its settings. An engine that is still open is closed when Python exits.

    Args:
        factory: makes the executor, on the step thread.
        options: options of the engine; the defaults if None.
        model_line: value of `EngineInfo.model_line`.
        tokenizer: path of the checkpoint's tokenizer.json. None: requests cannot have grammars.

    Raises:
        Exception: any error that `factory` raises.
    """

    def __init__(
        self,
        factory: Callable[[], Executor],
        options: EngineOptions | None = None,
        *,
        model_line: str = "",
        tokenizer: Path | None = None,
    ) -> None:
        self._options = options or EngineOptions()
        self._model_line = model_line
        self._tokenizer = tokenizer
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._death: str | None = None
        self._unresolved: set[Future[Any]] = set()
        started: Future[tuple[EngineLoop, LoadMeter]] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(factory, started), name="openinfer-step", daemon=True
        )
        self._thread.start()
        self._loop, self._meter = started.result()
        # If Python exits while a step runs native code, the process aborts.
        atexit.register(self.close)

    @property
    def info(self) -> EngineInfo:
        """The engine's identity, limits and abilities."""
        return self._loop.info

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Submits a request; see `EngineHandle.submit`.

        Raises:
            EngineDead: the engine has ended.
        """
        checked = _CheckedSink(request.request_id, sink, self.abort)
        if self._tasks.qsize() > self._options.max_queued_requests:
            rejected = Rejected(
                kind="overloaded", message="too many requests wait; retry later", retry_after_s=1.0
            )
            checked(TokenEvent(end=rejected))
        else:
            self._put(lambda loop: loop.submit(request, checked))
        return Ticket(self, request.request_id)

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts requests; each still gets its last event. Unknown and finished ids are ignored."""
        ids = tuple(request_ids)
        with self._lock:
            if self._death is None:
                self._tasks.put(lambda loop: loop.abort(ids))

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Runs a command between two steps."""
        future: Future[CommandResult] = Future()
        self._put_call(
            future, lambda loop: loop.control(command, lambda r: self._resolve(future, r))
        )
        return future

    def load(self) -> Load:
        """Returns the load as last read, at most a quarter of a second ago."""
        return self._meter.latest

    def drain(self) -> "Future[None]":
        """Rejects new requests; the future completes when the last live one has ended."""
        future: Future[None] = Future()
        self._put_call(future, lambda loop: loop.drain(lambda: self._resolve(future, None)))
        return future

    def close(self) -> None:
        """Ends the engine and joins its thread. Live requests fail. Idempotent."""
        with self._lock:
            if self._death is None:
                self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            atexit.unregister(self.close)

    def _put(self, task: _Task) -> None:
        with self._lock:
            if self._death is not None:
                raise EngineDead(self._death)
            self._tasks.put(task)

    def _put_call(self, future: "Future[Any]", task: _Task) -> None:
        with self._lock:
            if self._death is None:
                self._unresolved.add(future)
                self._tasks.put(task)
                return
        future.set_exception(EngineDead(self._death))

    def _resolve(self, future: "Future[Any]", result: CommandResult | None) -> None:
        with self._lock:
            self._unresolved.discard(future)
        if future.set_running_or_notify_cancel():
            future.set_result(result)

    def _run(
        self,
        factory: Callable[[], Executor],
        started: "Future[tuple[EngineLoop, LoadMeter]]",
    ) -> None:
        """Builds the loop and runs it until it is closed or dies. The step thread's target."""
        try:
            check_options(self._options)
            loop = assemble(
                factory(),
                self._options,
                model_line=self._model_line,
                tokenizer=self._tokenizer,
            )
            meter = LoadMeter(loop, time.monotonic())
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result((loop, meter))
        try:
            self._serve(loop, meter)
            reason = "the engine was closed"
            loop.fail_all(reason)
        except Exception as error:
            reason = loop.die(error)
        self._die(loop, reason)
        loop.close()

    def _serve(self, loop: EngineLoop, meter: LoadMeter) -> None:
        is_busy, may_prepare = False, True
        while self._take_tasks(loop, meter, 0.0 if is_busy else _wait_s(loop, meter, may_prepare)):
            if may_prepare and not is_busy and self._tasks.empty():
                may_prepare = loop.prepare() or loop.has_work
            is_busy = loop.has_work and loop.step()
            meter.is_stale |= is_busy
            meter.poll(time.monotonic())
            if loop.replay is not None:
                loop.replay.serve()

    def _take_tasks(self, loop: EngineLoop, meter: LoadMeter, timeout: float | None) -> bool:
        """Runs the tasks that other threads have queued; returns False if one closes the engine."""
        try:
            task = self._tasks.get(timeout != 0.0, timeout)
            while task is not None:
                meter.is_stale = True
                task(loop)
                task = self._tasks.get_nowait()
        except queue.Empty:
            return True
        return False

    def _die(self, loop: EngineLoop, reason: str) -> None:
        """Rejects further tasks, runs those already queued, and fails their futures."""
        with self._lock:
            self._death = reason
        while not self._tasks.empty():
            task = self._tasks.get_nowait()
            if task is not None:
                task(loop)
        # These tasks may have completed some futures. No thread adds futures any more.
        waiting, self._unresolved = self._unresolved, set()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineDead(reason))


def _wait_s(loop: EngineLoop, meter: LoadMeter, may_prepare: bool) -> float | None:
    has_to_look = loop.has_work or loop.replay is not None
    waits = (
        loop.stalled_wait_s if has_to_look else None,
        _QUIET_S if may_prepare else None,
        meter.wait_s(time.monotonic()),
    )
    return min((wait for wait in waits if wait is not None), default=None)
