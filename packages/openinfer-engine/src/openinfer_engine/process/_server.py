"""The server of an engine process: its main thread reads sockets, steps the loop and writes.

While requests run, the sockets are polled between steps. On a device, polling continues for 10 ms
after the last activity. If there is nothing to step, the thread blocks in `select`. There are no
helper threads: torch releases the GIL in every call, and a busy thread would then hold it.
"""

import errno
import gc
import logging
import selectors
import socket
import time
from collections.abc import Sequence
from functools import partial

from openinfer_contract import (
    Abort,
    ClientMessage,
    Close,
    ContractVersionError,
    Control,
    Drain,
    Hello,
    Submit,
    WireError,
)
from openinfer_engine.loop._engine_loop import EngineLoop
from openinfer_engine.loop._load_meter import LoadMeter
from openinfer_engine.process._connection import Connection, Stream

UNWRITABLE_S = 30.0
"""A client that reads nothing for this many seconds is disconnected."""
_BLOCKED_WAIT_S = 1.0
_POLLED_S = 0.01
"""On a device, the engine polls for this many seconds after the last activity. A core that sleeps
takes long to wake and is slow at first; the next turn of a client arrives within a few
milliseconds."""
_QUIET_S = 0.1
"""After this many idle seconds the engine does optional work. The next turn of a client arrives
sooner."""
_ACCEPT_PAUSE_S = 1.0
"""If the process has no file descriptor left for a client, `accept` is tried again after this."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_LAST_FLUSH_S = 1.0
_LAST_FLUSH_POLL_S = 0.01
_STEPS_BETWEEN_COLLECTIONS = 20_000

_logger = logging.getLogger(__name__)


class EngineServer:
    """Serves one loop over sockets until its parent is gone, a client closes it or it dies.

    Args:
        loop: stepped by the thread that calls `run`.
        parent: the inherited socket, after the start messages.
        listeners: sockets on which further clients connect.
        unwritable_s: seconds after which a client that reads nothing is disconnected.
    """

    def __init__(
        self,
        loop: EngineLoop,
        parent: socket.socket,
        listeners: Sequence[socket.socket] = (),
        unwritable_s: float = UNWRITABLE_S,
    ) -> None:
        self._loop = loop
        self._listeners = tuple(listeners)
        self._unwritable_s = unwritable_s
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._writers: set[Connection] = set()
        self._accepts_at: float | None = None
        """When `accept` is tried again; None while the listeners are watched."""
        self._closing: str | None = None
        self._is_busy = False
        self._polls_until = 0.0
        self._last_active_at = time.monotonic()
        """When a client last sent something or a request was live."""
        self._may_prepare = True
        self._replay = loop.replay
        self._meter = LoadMeter(loop, time.monotonic())
        self._steps_since_collection = 0
        for sock in self._listeners:
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)
        if self._replay is not None:
            self._selector.register(self._replay, selectors.EVENT_READ)
        self._connect(parent, is_parent=True)

    def run(self) -> str | None:
        """Serves until the end. Returns why the engine died, or None if it was closed."""
        gc.collect()
        gc.freeze()
        gc.disable()
        reason: str | None = None
        try:
            while self._closing is None:
                self._serve_once()
            _logger.info("closing: %s", self._closing)
            self._loop.fail_all(f"the engine is closing: {self._closing}")
        except Exception as error:
            reason = self._loop.die(error)
        finally:
            gc.enable()
            gc.unfreeze()
            self._flush_all()
            self._close_sockets()
        return reason

    def _serve_once(self) -> None:
        has_question = False
        selected = self._selector.select(self._timeout())
        self._prepare(is_wanted=bool(selected) or self._loop.has_work)
        for key, events in selected:
            if isinstance(key.data, Connection):
                if events & selectors.EVENT_READ:
                    self._read(key.data)
            elif isinstance(key.fileobj, socket.socket):
                self._accept(key.fileobj)
            else:
                has_question = True
        if self._replay is not None and (has_question or self._replay.wait_s is not None):
            self._replay.serve()
        self._is_busy = self._loop.has_work and self._loop.step()
        if self._is_busy:
            self._meter.is_stale = True
            self._steps_since_collection += 1
        now = time.monotonic()
        if (selected or self._is_busy) and self._loop.has_device:
            self._polls_until = now + _POLLED_S
        load = self._meter.poll(now)
        if load is not None:
            for connection in self._connections:
                connection.report_load(load)
        self._flush(now)
        self._resume_accepting(now)
        self._collect_garbage()

    def _prepare(self, *, is_wanted: bool) -> None:
        """Does optional work once the engine has been idle for `_QUIET_S`."""
        if is_wanted:
            self._last_active_at = time.monotonic()
        elif self._may_prepare and time.monotonic() >= self._last_active_at + _QUIET_S:
            self._may_prepare = self._loop.prepare()

    def _timeout(self) -> float | None:
        """Returns how long `select` may block."""
        now = time.monotonic()
        if self._is_busy or now < self._polls_until:
            return 0.0
        waits = (
            self._loop.stalled_wait_s if self._loop.has_work else None,
            max(0.0, self._last_active_at + _QUIET_S - now) if self._may_prepare else None,
            self._meter.wait_s(now),
            None if self._replay is None else self._replay.wait_s,
            _BLOCKED_WAIT_S if self._writers else None,
            _ACCEPT_PAUSE_S if self._accepts_at is not None else None,
        )
        return min((wait for wait in waits if wait is not None), default=None)

    def _accept(self, listener: socket.socket) -> None:
        """Accepts a client. Failing to do so does not affect the engine."""
        try:
            sock, _ = listener.accept()
            self._connect(sock)
        except OSError as error:
            if error.errno in _EXHAUSTED and self._accepts_at is None:
                _logger.error("no further client can be accepted: %s", error.strerror)
                # With a client in its queue a listener stays readable, and `select` would spin.
                for sock in self._listeners:
                    self._selector.unregister(sock)
                self._accepts_at = time.monotonic() + _ACCEPT_PAUSE_S

    def _resume_accepting(self, now: float) -> None:
        if self._accepts_at is not None and now >= self._accepts_at:
            self._accepts_at = None
            for sock in self._listeners:
                self._selector.register(sock, selectors.EVENT_READ)

    def _connect(self, sock: socket.socket, *, is_parent: bool = False) -> None:
        connection = Connection(sock, self._loop.info, is_parent=is_parent)
        connection.report_load(self._meter.latest)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        try:
            messages = connection.receive()
            if messages is None:
                self._disconnect(connection)
                return
            for message in messages:
                self._handle(connection, message)
            self._meter.is_stale = True
        except (WireError, ContractVersionError) as error:
            _logger.error("a client is disconnected: %s", error)
            self._disconnect(connection)

    def _handle(self, connection: Connection, message: ClientMessage) -> None:
        if isinstance(message, Submit):
            self._submit(connection, message)
        elif isinstance(message, Abort):
            ids = (connection.request_ids.get(i) for i in message.stream_ids)
            self._loop.abort([request_id for request_id in ids if request_id is not None])
        elif isinstance(message, Control):
            self._loop.control(message.command, partial(connection.reply, message.call_id))
        elif isinstance(message, Drain):
            self._loop.drain(connection.report_drained)
        elif isinstance(message, Close):
            self._closing = "an engine client asked for it"
        else:
            assert isinstance(message, Hello)
            raise WireError("a second Hello")

    def _submit(self, connection: Connection, message: Submit) -> None:
        stream_id, request = message.stream_id, message.request
        if stream_id in connection.request_ids or not 0 <= stream_id < 2**32:
            raise WireError(f"stream id {stream_id} is in use already, or not a u32")
        connection.request_ids[stream_id] = request.request_id
        self._loop.submit(request, Stream(connection, stream_id))

    def _disconnect(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._writers.discard(connection)
        self._selector.unregister(connection.sock)
        connection.close()
        if connection.is_parent:
            self._closing = "the parent is gone"
        self._loop.abort(tuple(connection.request_ids.values()))

    def _flush(self, now: float) -> None:
        for connection in [c for c in self._connections if c.has_output]:
            if not connection.flush(self._loop.step_id, now):
                self._disconnect(connection)
            elif connection.blocked_since is None:
                self._watch(connection, selectors.EVENT_READ)
                self._writers.discard(connection)
            elif now - connection.blocked_since > self._unwritable_s:
                _logger.warning(
                    "a client has read nothing for %.0f s and is disconnected", self._unwritable_s
                )
                self._disconnect(connection)
            else:
                reading = 0 if connection.is_flooded else selectors.EVENT_READ
                self._watch(connection, reading | selectors.EVENT_WRITE)
                self._writers.add(connection)

    def _watch(self, connection: Connection, events: int) -> None:
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, connection)

    def _collect_garbage(self) -> None:
        """Collects garbage while idle, or after many steps if the engine is never idle."""
        is_idle = not self._meter.is_stale and self._steps_since_collection > 0
        if is_idle or self._steps_since_collection >= _STEPS_BETWEEN_COLLECTIONS:
            self._steps_since_collection = 0
            gc.collect()

    def _flush_all(self) -> None:
        """Gives clients a second to read their last events."""
        deadline = time.monotonic() + _LAST_FLUSH_S
        waiting = {c for c in self._connections if c.has_output}
        while waiting and (now := time.monotonic()) < deadline:
            waiting = {c for c in waiting if c.flush(self._loop.step_id, now) and c.has_output}
            if waiting:
                time.sleep(_LAST_FLUSH_POLL_S)

    def _close_sockets(self) -> None:
        self._selector.close()
        for connection in self._connections:
            connection.close()
        for sock in self._listeners:
            sock.close()
