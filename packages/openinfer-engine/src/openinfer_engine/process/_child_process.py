"""Starting one engine process and connecting to it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from openinfer_contract import ContractVersionError, EngineDead
from openinfer_engine.errors import EngineStartError
from openinfer_engine.process._remote_engine import RemoteEngine
from openinfer_engine.process._start_messages import (
    LENGTH,
    ProcessSpec,
    Progress,
    Started,
    StartFailed,
    StartMessage,
    decode_start,
    encode_start,
)

# Waiting OpenMP threads that spin for long take the cores of the front processes. Threads that
# never spin must be woken for every matrix product, which slows a large model by a third. 10,000
# spins are about 0.2 ms, longer than the time between two products.
_SPINNING = {"GOMP_SPINCOUNT": "10000"}
_WAIT_SETTINGS = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}

# Without this, each thread that reads weights keeps its own malloc arena: 13 MB on a GPU host.
_HEAPS = {"MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True, slots=True)
class SpawnedEngine:
    """An engine process that is starting, and our end of its socket.

    The process starts on its own, so the caller can do other work before `EngineChild.start`.
    """

    socket: socket.socket
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """Kills the process and blocks until it has ended, which takes milliseconds."""
        self.socket.close()
        self.process.kill()
        self.process.wait()


def spawn(spec: ProcessSpec, listen: Sequence[str]) -> SpawnedEngine:
    """Starts an engine process and sends it its spec. Needs no event loop.

    Raises:
        EngineStartError: the system cannot start a process.
    """
    message = encode_start(spec)
    with ExitStack() as stack:
        try:
            ours, theirs = map(stack.enter_context, socket.socketpair())
            command = [sys.executable, "-m", "openinfer_engine", "--fd", str(theirs.fileno())]
            for address in listen:
                command += ["--listen", address]
            process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # Ctrl-C must reach only the front process. In a session of its own the engine is
                # safe from it even before it ignores the signal.
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            reason = f"no engine process can be started: {error.strerror or error}"
            raise EngineStartError("NotStarted", reason) from error
        stack.pop_all()
    theirs.close()
    with suppress(OSError):  # if the process has ended already, `EngineChild.start` finds out
        ours.sendall(message)
    return SpawnedEngine(ours, process)


class EngineChild:
    """A running engine process and the connection to it.

    Attributes:
        engine: the client over the inherited socket.
        process: the child process.
        addresses: further addresses it listens on, ports resolved.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        process: "subprocess.Popen[bytes]",
        addresses: tuple[str, ...],
    ) -> None:
        self.engine = engine
        self.process = process
        self.addresses = addresses

    @classmethod
    async def start(
        cls,
        spec: ProcessSpec,
        *,
        listen: Sequence[str] = (),
        silence_s: float | None = None,
        on_progress: Callable[[str], None] | None = None,
        spawned: SpawnedEngine | None = None,
    ) -> "EngineChild":
        """Starts a process and waits until it can serve requests.

        Args:
            spec: what the process shall run.
            listen: further addresses to listen on, `unix:PATH` or `tcp:HOST:PORT`.
            silence_s: seconds without a progress message after which the start has failed; None: no
                timeout.
            on_progress: called with each progress message.
            spawned: the process, if it was spawned already with the same `spec` and `listen`.

        Raises:
            EngineStartError: the process reported an error, died or was silent. It has ended.
        """
        if spawned is None:
            spawned = spawn(spec, listen)
        ours, process = spawned.socket, spawned.process
        try:
            ours.setblocking(False)
            started = await _await_started(ours, process, silence_s, on_progress)
            engine = await RemoteEngine.connect(ours)
        except BaseException as error:
            ours.close()
            process.kill()
            await asyncio.to_thread(process.wait)
            if isinstance(error, EngineDead | ContractVersionError):
                raise EngineStartError(type(error).__name__, str(error)) from error
            raise
        return cls(engine, process, started.addresses)

    async def stop(self, patience_s: float) -> int:
        """Closes the engine and waits for its process; kills it after `patience_s` seconds.

        Returns:
            The exit status; a negative number is the signal that ended the process.
        """
        self.engine.close()
        try:
            return await asyncio.to_thread(self.process.wait, patience_s)
        except subprocess.TimeoutExpired:
            return await self.kill()

    async def kill(self) -> int:
        """Kills the process and returns its exit status."""
        self.engine.disconnect()
        self.process.kill()
        return await asyncio.to_thread(self.process.wait)


async def _await_started(
    sock: socket.socket,
    process: "subprocess.Popen[bytes]",
    silence_s: float | None,
    on_progress: Callable[[str], None] | None,
) -> Started:
    try:
        while True:
            message = await asyncio.wait_for(_receive(sock), silence_s)
            if isinstance(message, Started):
                return message
            if isinstance(message, StartFailed):
                raise EngineStartError(message.kind, message.message)
            assert isinstance(message, Progress)
            if on_progress is not None:
                on_progress(message.message)
    except TimeoutError as error:
        reason = f"the engine reported no progress for {silence_s:.0f} s while it started"
        raise EngineStartError("Hung", reason) from error
    except OSError as error:
        status = await asyncio.to_thread(process.wait)
        reason = f"the engine process ended with status {status} while it started"
        raise EngineStartError("Exited", reason) from error


async def _receive(sock: socket.socket) -> StartMessage:
    (size,) = LENGTH.unpack(await _receive_exactly(sock, LENGTH.size))
    return decode_start(await _receive_exactly(sock, size))


async def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        chunk = await loop.sock_recv(sock, size - len(data))
        if not chunk:
            raise ConnectionResetError("the engine process is gone")
        data += chunk
    return data


def _environment() -> dict[str, str]:
    """Returns our environment plus thread and malloc settings, unless it sets them already."""
    waits = {} if _WAIT_SETTINGS & os.environ.keys() else _SPINNING
    return {**_HEAPS, **os.environ, **waits}
