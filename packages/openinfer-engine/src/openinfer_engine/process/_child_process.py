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

# OpenMP threads that spin for long while they wait take the cores from the front processes beside
# the engine; those that never spin are woken at every product of a step, which costs a large model
# a third of its pace. 0.2 ms is more than lies between two products.
_SPINNING = {"GOMP_SPINCOUNT": "10000"}
_WAIT_SETTINGS = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}

# Threads that read weights would each leave a heap of their own behind: 13 MB beside a GPU.
_HEAPS = {"MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True, slots=True)
class SpawnedEngine:
    """An engine process that starts, and our end of its socket; `EngineChild.start` waits for it.

    It starts by itself, so whoever has spawned it may do other things first.
    """

    socket: socket.socket
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """Ends the process at once. Blocks until it is gone, which takes milliseconds."""
        self.socket.close()
        self.process.kill()
        self.process.wait()


def spawn(spec: ProcessSpec, listen: Sequence[str]) -> SpawnedEngine:
    """Starts a process and tells it what to be; needs no event loop.

    Raises:
        EngineStartError: the system starts none.
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
                # A terminal's Ctrl-C is the front's; it could come before this process ignores it.
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            reason = f"no engine process can be started: {error.strerror or error}"
            raise EngineStartError("NotStarted", reason) from error
        stack.pop_all()
    theirs.close()
    with suppress(OSError):  # one that has ended already is found out by who waits for it
        ours.sendall(message)
    return SpawnedEngine(ours, process)


class EngineChild:
    """A running engine process and the connection to it.

    Attributes:
        engine: the client over the inherited socket.
        process: the child.
        addresses: where else it listens, ports resolved.
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
        """Starts a process and waits until it can serve.

        Args:
            spec: what it shall be.
            listen: further addresses, `unix:PATH` or `tcp:HOST:PORT`.
            silence_s: a start that says nothing for so long is hung; None waits for ever.
            on_progress: called with lines for people.
            spawned: the process, if it was spawned already, with the same `spec` and `listen`.

        Raises:
            EngineStartError: it said why not, died, or hung; the process is gone.
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
        """Closes the engine and waits for its process, which is killed if it does not end.

        Returns:
            The exit status; negative: the signal that ended it.
        """
        self.engine.close()
        try:
            return await asyncio.to_thread(self.process.wait, patience_s)
        except subprocess.TimeoutExpired:
            return await self.kill()

    async def kill(self) -> int:
        """Ends the process at once; returns its exit status."""
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
        reason = f"the engine said nothing for {silence_s:.0f} s while it started"
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
    """The engine's: this one, and how its threads wait and share memory unless that is set."""
    waits = {} if _WAIT_SETTINGS & os.environ.keys() else _SPINNING
    return {**_HEAPS, **os.environ, **waits}
