"""Front processes: their settings, their view of the engine, and the processes beside the first.

    python -m openinfer.serve._front        (started by `FrontProcesses`; its spec comes on stdin)

A further front process drains and ends when its stdin is closed.
"""

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from contextlib import suppress

import msgspec

from openinfer._interrupts import end_quietly
from openinfer._log import start_logging
from openinfer.options._http_options import HttpOptions
from openinfer.options._text_options import TextOptions
from openinfer.serve._arenas import keep_one_arena
from openinfer.serve._grammar_check import grammar_problem
from openinfer_contract import EngineDead, EngineHandle, OpenInferError
from openinfer_engine import EngineSupervisor, RemoteEngine
from openinfer_frontend import (
    SAME_SIGNAL_S,
    CounterPages,
    EngineState,
    FrontendConfig,
    create_app,
    new_event_loop,
    serve,
)
from openinfer_text import GenerationDefaults, TextModel

_RECONNECT_S = 0.2
_RESTART_S = 1.0
_AFTER_DRAIN_S = 5.0
_SETTLED_S = 10.0
_MAX_RESTARTS = 3
_CHILD = ("-m", "openinfer.serve._front")

_logger = logging.getLogger("openinfer")


class FrontSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a front process; it travels between processes as JSON."""

    model_path: str
    text: TextOptions
    version: str
    log_level: str = "info"
    http: HttpOptions = HttpOptions()
    poll_s: float = 0.0
    """See `FrontendConfig.poll_s`."""
    defaults: GenerationDefaults | None = None
    """Sampling defaults in place of the checkpoint's own."""

    def config(self) -> FrontendConfig:
        """The front end's settings."""
        return FrontendConfig(
            version=self.version,
            check_grammar=grammar_problem,
            poll_s=self.poll_s,
            **self.http.for_config(),
        )

    def load_text(self) -> TextModel:
        """The checkpoint's tokenizer and template."""
        text = self.text.load(self.model_path)
        if self.defaults is not None:
            text.generation = self.defaults
        return text


class SupervisedEngine:
    """The front end's view of a supervised engine: an `EngineProvider`."""

    def __init__(self, supervisor: EngineSupervisor) -> None:
        self._supervisor = supervisor

    @property
    def state(self) -> EngineState:
        """The state of the engine."""
        state = self._supervisor.state
        return "dead" if state == "closed" else state

    def handle(self) -> EngineHandle:
        """Returns the running engine.

        Raises:
            EngineDead: there is none.
        """
        if self._supervisor.state != "ready":
            raise EngineDead(self._supervisor.reason)
        return self._supervisor


class ReconnectingEngine:
    """An `EngineProvider` over an engine that another process supervises."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._engine: RemoteEngine | None = None

    @property
    def state(self) -> EngineState:
        """The state of the engine."""
        return "restarting" if self._engine is None else "ready"

    def handle(self) -> EngineHandle:
        """Returns the running engine.

        Raises:
            EngineDead: the connection to it is lost.
        """
        if self._engine is None:
            raise EngineDead("the engine is restarting")
        return self._engine

    async def connect(self) -> None:
        """Connects once.

        Raises:
            EngineDead: the engine cannot be reached.
            ContractVersionError: the engine speaks another version.
        """
        self._engine = await RemoteEngine.connect(self._address)

    async def keep(self) -> None:
        """Reconnects whenever the connection is lost, until it is cancelled.

        Raises:
            ContractVersionError: the restarted engine has another version; a front process of that
                version must replace this one.
        """
        while True:
            if self._engine is not None:
                reason = await self._engine.wait_dead()
                self._engine = None
                _logger.warning("the connection to the engine is lost: %s", reason)
            await asyncio.sleep(_RECONNECT_S)
            with suppress(EngineDead):
                await self.connect()


def freeze_heap() -> None:
    """Excludes the objects of a ready front process from garbage collection.

    Modules, validators, templates and the tokenizer's tables are more than 50,000 objects that live
    as long as the process. A full collection that walks them stops every stream for at least 7 ms.
    """
    gc.collect()
    gc.freeze()


class _ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    front: FrontSpec
    address: str
    fd: int
    """File descriptor of the listening socket."""
    counters_fd: int
    """File descriptor of the shared memory of the metrics' counters."""
    num_fronts: int
    number: int = 0
    """Index of the process's page of metrics counters. A replacement uses the same page."""


class FrontProcesses:
    """Further front processes on the same listening socket. A process that dies is replaced.

    Use it in one event loop. If a process ends soon after its start several times in a row, it is
    not replaced again; the others continue to serve.
    """

    def __init__(
        self,
        spec: FrontSpec,
        sock: socket.socket,
        address: str,
        count: int,
        counters: CounterPages,
    ) -> None:
        """Prepares the processes; `start` starts them.

        Args:
            spec: settings of the processes.
            sock: bound socket. Every process inherits it; the caller closes it.
            address: address of the engine.
            count: number of processes.
            counters: pages of all front processes; the caller's process has the first.
        """
        self._spec = _ChildSpec(
            front=spec,
            address=address,
            fd=sock.fileno(),
            counters_fd=counters.fd,
            num_fronts=count + 1,
        )
        self._stop_s = spec.http.drain_timeout_s + _AFTER_DRAIN_S
        self._count = count
        self._draining = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._processes: set[asyncio.subprocess.Process] = set()

    async def start(self) -> None:
        """Starts the processes; each accepts connections once it is connected to the engine."""
        numbers = range(1, self._count + 1)
        processes = await asyncio.gather(*map(self._spawn, numbers))
        self._keepers = [
            asyncio.create_task(self._keep(number, process))
            for number, process in zip(numbers, processes, strict=True)
        ]

    def drain(self) -> None:
        """Makes the processes finish their running requests and end. They are not replaced."""
        self._draining.set()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()

    def hurry(self) -> None:
        """Makes draining processes end at once, by a second SIGTERM."""
        self._stop_s = _AFTER_DRAIN_S
        self._signal(signal.SIGTERM)
        # A process that began to drain less than SAME_SIGNAL_S ago takes this signal for the first
        # one, so it is sent again.
        asyncio.get_running_loop().call_later(SAME_SIGNAL_S, self._signal, signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        self._draining.set()
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def stop(self) -> None:
        """Drains the processes, then kills those that are still running."""
        self.drain()
        try:
            async with asyncio.timeout(self._stop_s):
                await asyncio.shield(asyncio.gather(*self._keepers))
        except TimeoutError:
            pass
        finally:
            self._signal(signal.SIGKILL)
        await asyncio.gather(*self._keepers)

    async def _spawn(self, number: int) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_CHILD,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(self._spec.fd, self._spec.counters_fd),
            # Only the first process gets Ctrl-C from the terminal; it then ends the others.
            start_new_session=True,
        )
        assert process.stdin is not None
        spec = msgspec.structs.replace(self._spec, number=number)
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        self._processes.add(process)
        if self._draining.is_set():
            process.stdin.close()
        return process

    async def _keep(self, number: int, process: asyncio.subprocess.Process) -> None:
        num_short_lives = 0
        while True:
            begun = time.monotonic()
            status = await process.wait()
            self._processes.discard(process)
            is_short = time.monotonic() - begun < _SETTLED_S
            num_short_lives = num_short_lives + 1 if is_short else 0
            if num_short_lives > _MAX_RESTARTS and not self._draining.is_set():
                _logger.error(
                    "a front process ended with status %d again; it is not restarted", status
                )
                return
            restarted = await self._restart(number, status)
            if restarted is None:
                return
            process = restarted

    async def _restart(self, number: int, status: int) -> asyncio.subprocess.Process | None:
        """Returns a replacement for a process that has ended, or None once the server drains."""
        # A signal to all processes may end this one before the server begins to drain. So wait
        # first.
        while not await self._drains_within(_RESTART_S):
            _logger.error("a front process ended with status %d; starting another", status)
            try:
                return await self._spawn(number)
            except OSError as error:
                _logger.error("no front process can be started: %s", error)
        return None

    async def _drains_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._draining.wait()
        except TimeoutError:
            return False


async def _run_child(line: bytes) -> None:
    spec = msgspec.json.decode(line, type=_ChildSpec)
    logging.getLogger().setLevel(spec.front.log_level.upper())
    provider = ReconnectingEngine(spec.address)
    with suppress(EngineDead):
        await provider.connect()
    stop = asyncio.Event()
    keeper = asyncio.create_task(provider.keep())
    keeper.add_done_callback(lambda _: stop.set())
    loop = asyncio.get_running_loop()

    def on_end_of_input() -> None:
        # A closed stdin is always readable: without this the event loop would spin during the
        # drain.
        loop.remove_reader(sys.stdin.fileno())
        stop.set()

    loop.add_reader(sys.stdin.fileno(), on_end_of_input)
    text = await asyncio.to_thread(spec.front.load_text)
    try:
        counters = CounterPages(spec.num_fronts, fd=spec.counters_fd)
        app = create_app(provider, text, spec.front.config(), counters=counters, number=spec.number)
        with socket.socket(fileno=spec.fd) as sock:
            await serve(
                app,
                [sock],
                drain_timeout_s=spec.front.http.drain_timeout_s,
                stop=stop,
                on_ready=freeze_heap,
                tls=spec.front.http.tls(),
            )
    finally:
        loop.remove_reader(sys.stdin.fileno())
        keeper.cancel()
        text.close()
    with suppress(asyncio.CancelledError):
        await keeper


def main() -> int:
    """Runs one further front process; returns 0, or 1 after it logged a failure."""
    start_logging()
    keep_one_arena()
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        line = stdin.readline()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_run_child(line))
    except OpenInferError as error:
        _logger.error("a front process ends: %s", error)
        return 1
    finally:
        end_quietly()
    return 0


if __name__ == "__main__":
    sys.exit(main())
