"""The engine process: receives its spec, builds the executor, reports that it is ready, serves.

    python -m openinfer_engine --fd N [--listen unix:PATH | tcp:HOST:PORT]...

N is an inherited, connected stream socket. The engine ends when it closes. Exit statuses: 0 closed
on request, 1 the start failed (and the parent was told why), 70 the engine died.
"""

import argparse
import gc
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from openinfer_contract import OpenInferError
from openinfer_engine._assembly import assemble, check_options
from openinfer_engine.loop._engine_loop import EngineLoop
from openinfer_engine.process._address import bound_address, listen, remove_socket_file
from openinfer_engine.process._server import EngineServer
from openinfer_engine.process._start_messages import (
    LENGTH,
    MAX_START_FRAME_BYTES,
    ProcessSpec,
    Progress,
    Started,
    StartFailed,
    decode_spec,
    encode_start,
    resolve_factory,
)

EXIT_START_FAILED = 1
EXIT_DIED = 70

_logger = logging.getLogger(__name__)


class _ProgressHandler(logging.Handler):
    """Sends log lines to the parent while the engine starts."""

    def __init__(self, parent: socket.socket) -> None:
        super().__init__(logging.INFO)
        self._parent: socket.socket | None = parent

    def emit(self, record: logging.LogRecord) -> None:
        if self._parent is not None:
            _send(self._parent, Progress(record.getMessage()))

    def close(self) -> None:
        """Stops sending, even a line that another thread is about to send."""
        self.acquire()  # the lock is held during `emit`
        try:
            self._parent = None
        finally:
            self.release()
        super().close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the engine process and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m openinfer_engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="number of the inherited socket")
    parser.add_argument("--listen", action="append", default=[], help="address to listen on")
    options = parser.parse_args(arguments)
    # Imported modules live as long as the process, so the garbage collector need not visit them.
    # `heavy_imports` does the same for the model line's imports.
    gc.freeze()
    # A signal to the process group is handled by the front process, which drains and then closes
    # this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s engine: %(message)s",
        datefmt="%H:%M:%S",
    )
    with ExitStack() as stack:
        parent = stack.enter_context(socket.socket(fileno=options.fd))
        return _run(parent, options.listen, stack)


def _run(parent: socket.socket, addresses: Sequence[str], stack: ExitStack) -> int:
    spec = _receive_spec(parent)
    if spec is None:
        return EXIT_START_FAILED
    logging.getLogger().setLevel(spec.log_level.upper())
    try:
        with _progress_to(parent):
            listeners = [stack.enter_context(listen(address)) for address in addresses]
            for listener in listeners:
                stack.callback(remove_socket_file, listener.getsockname())
            loop = _build(spec)
    except Exception as error:
        if not _is_user_facing(error):
            _logger.error("the engine did not start", exc_info=error)
        _send(parent, _failure(error))
        return EXIT_START_FAILED
    stack.callback(loop.close)
    bound = tuple(bound_address(listener) for listener in listeners)
    if not _send(parent, Started(bound)):
        return EXIT_START_FAILED
    server = EngineServer(loop, parent, listeners)
    reason = server.run()
    return 0 if reason is None else EXIT_DIED


def _send(parent: socket.socket, message: Progress | Started | StartFailed) -> bool:
    """Sends a message to the parent; returns False if the parent is gone."""
    try:
        parent.sendall(encode_start(message))
    except OSError:
        return False
    return True


def _build(spec: ProcessSpec) -> EngineLoop:
    check_options(spec.launch.engine)
    executor = resolve_factory(spec.factory)(spec.launch)
    if executor.info.memory:
        _logger.info("memory on %s%s", executor.info.device, _table(executor.info.memory))
    return assemble(
        executor,
        spec.launch.engine,
        model_line=spec.launch.model_line,
        tokenizer=Path(spec.launch.model_path) / "tokenizer.json",
    )


def _table(memory: Sequence[tuple[str, int]]) -> str:
    """Returns the memory plan as text, one line for each purpose."""
    total = ("total", sum(num_bytes for _, num_bytes in memory))
    return "".join(f"\n  {what:16}{size / 2**20:12,.1f} MiB" for what, size in (*memory, total))


def _progress_to(parent: socket.socket) -> ExitStack:
    """Sends log lines to the parent as progress, until the returned stack is closed."""
    handler = _ProgressHandler(parent)
    root = logging.getLogger()
    root.addHandler(handler)
    stack = ExitStack()
    stack.callback(handler.close)
    stack.callback(root.removeHandler, handler)
    return stack


def _is_user_facing(error: Exception) -> bool:
    """Returns whether the error's message alone is enough for a user."""
    return isinstance(error, OpenInferError | ValueError)


def _failure(error: Exception) -> StartFailed:
    kind = type(error).__name__
    return StartFailed(kind, str(error) if _is_user_facing(error) else f"{kind}: {error}")


def _receive_spec(parent: socket.socket) -> ProcessSpec | None:
    """Returns the first frame's spec, or None if the parent is gone."""
    head = _receive(parent, LENGTH.size)
    if head is None:
        return None
    (size,) = LENGTH.unpack(head)
    assert size <= MAX_START_FRAME_BYTES, "the parent sends no ProcessSpec"
    payload = _receive(parent, size)
    return None if payload is None else decode_spec(payload)


def _receive(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
