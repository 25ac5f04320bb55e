"""Control of a loop's traces: starting, stopping, and ending a trace whose file fails."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from openinfer_contract import (
    AddSpans,
    CommandDone,
    CommandFailed,
    CommandResult,
    Load,
    StartTrace,
    StopTrace,
)
from openinfer_engine._executor import Executor, TracedExecutor
from openinfer_engine.errors import TraceFailed
from openinfer_engine.trace._loop_trace import LoopTrace, StepTrace
from openinfer_engine.trace._trace_file import TraceFile
from openinfer_engine.trace._tracer import Tracer

_OFF = LoopTrace()
_CLIENT = "client"

_logger = logging.getLogger(__name__)


def check_places(file: str | None, folder: str | None) -> None:
    """Checks that the folders of the trace file and of later traces exist.

    Raises:
        TraceFailed: one does not exist.
    """
    if folder is not None and not Path(folder).is_dir():
        raise TraceFailed(f"the folder for traces, {folder}, does not exist; create it first")
    if file is not None and not (parent := Path(file).absolute().parent).is_dir():
        raise TraceFailed(f"trace {file}: the folder {parent} does not exist; create it first")


class TraceControl:
    """The trace of a loop, at most one at a time. Used by the step thread.

    Args:
        executor: reports its steps to the trace, if it is a `TracedExecutor`.
        clock: monotonic seconds of the trace.
        load: returns the loop's load.
        folder: folder for traces whose `StartTrace` names no file; None: such commands fail.
        max_bytes: upper bound of a trace's size, unless its `StartTrace` sets another one.

    Raises:
        TraceFailed: the folder does not exist.

    Attributes:
        steps: gets the loop's reports; does nothing while there is no trace.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Callable[[], float],
        load: Callable[[], Load],
        folder: str | None,
        max_bytes: int,
    ) -> None:
        check_places(None, folder)
        self.steps = _OFF
        self._executor = executor
        self._clock = clock
        self._load = load
        self._folder = folder
        self._max_bytes = max_bytes
        self._tracer: Tracer | None = None
        self._trace: StepTrace | None = None
        self._failure = ""
        """Why the last trace ended on its own; empty if it did not."""

    @property
    def is_on(self) -> bool:
        """Whether a trace is being written."""
        return self._tracer is not None

    def run_command(self, command: StartTrace | StopTrace) -> CommandResult:
        """Starts or stops a trace, with no step in flight."""
        try:
            path = self.start(command) if isinstance(command, StartTrace) else self.stop()
        except TraceFailed as error:
            return CommandFailed(kind="refused", message=str(error))
        return CommandDone(message=path, load=self._load())

    def start(self, command: StartTrace) -> str:
        """Starts a trace, with no step in flight; returns the path of its file.

        Raises:
            TraceFailed: a trace is being written already, or the file cannot be created.
        """
        executor, path = self._executor, command.path or self._default_path()
        if self._tracer is not None:
            raise TraceFailed(f"a trace is being written already, to {self._tracer.path}")
        if command.has_kernels and not isinstance(executor, TracedExecutor):
            raise TraceFailed(f"the device {executor.info.device} has no kernels to trace")
        file = TraceFile(path, command.max_bytes or self._max_bytes)
        self._tracer = tracer = Tracer(file, self._clock, has_kernels=command.has_kernels)
        self.steps = self._trace = StepTrace(tracer, executor.info.depth, self._load)
        if isinstance(executor, TracedExecutor):
            executor.trace(tracer)
        _logger.info("a trace is being written to %s", tracer.path)
        return str(tracer.path)

    def stop(self) -> str:
        """Ends the trace, with no step in flight; returns the path of its file.

        Raises:
            TraceFailed: there is no trace, or its file has failed.
        """
        tracer = self._tracer
        if tracer is None:
            raise TraceFailed(self._failure or "no trace is being written")
        self.close()
        if tracer.failure is not None:
            raise TraceFailed(tracer.failure)
        return str(tracer.path)

    def add(self, command: AddSpans, *, is_idle: bool) -> None:
        """Adds a client's spans; does nothing while there is no trace."""
        tracer = self._tracer
        if tracer is None or not command.spans:
            return
        pid, key = command.pid, command.key
        tracer.name_process(pid, command.process)
        (name, begin, end), *parts = command.spans
        tracer.begin(_CLIENT, key, name, begin, {"request_id": key}, pid=pid)
        for part, at, until in parts:
            tracer.begin(_CLIENT, key, part, at, pid=pid)
            tracer.end(_CLIENT, key, part, until, pid=pid)
        tracer.end(_CLIENT, key, name, end, pid=pid)
        self.write(is_idle=is_idle)

    def write(self, *, is_idle: bool = False) -> None:
        """Writes the buffered events if there are many of them, or if the engine is idle."""
        tracer = self._tracer
        if tracer is None or not (is_idle or tracer.is_due):
            return
        tracer.flush()
        if tracer.failure is not None:
            self.close()

    def close(self) -> None:
        """Ends the trace, if there is one. Idempotent."""
        tracer, trace = self._tracer, self._trace
        if tracer is None or trace is None:
            return
        self._tracer, self._trace, self.steps = None, None, _OFF
        if isinstance(self._executor, TracedExecutor):
            self._executor.trace(None)
        trace.close()
        tracer.close()
        self._failure = tracer.failure or ""
        if not self._failure:
            num = tracer.num_dropped
            dropped = f"; {num} events were dropped because it was full" if num else ""
            _logger.info("the trace %s is complete%s", tracer.path, dropped)

    def _default_path(self) -> str:
        if self._folder is None:
            raise TraceFailed("there is no folder for traces; start the engine with --trace-dir")
        name = f"openinfer-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
        return str(Path(self._folder) / name)
