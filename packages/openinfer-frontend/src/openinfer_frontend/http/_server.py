"""Listening and serving: uvicorn in the caller's event loop, with its own drain."""

import asyncio
import errno
import logging
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import uvicorn

from openinfer_frontend._app import FrontendApp
from openinfer_frontend.errors import ListenError
from openinfer_frontend.http._connection import Connection
from openinfer_frontend.http._signals import ShutdownSignals
from openinfer_frontend.http._tls import Tls

_BACKLOG = 2048
_LAST_RESPONSE_S = 1.0
"""Seconds that clients have to read the last response when the server shuts down."""
_POLL_S = 0.02

_log = logging.getLogger(__name__)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Makes the event loop to serve on: `asyncio.Runner(loop_factory=new_event_loop)`."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def bind(host: str, port: int) -> socket.socket:
    """Binds a TCP socket. Clients cannot connect before `serve`; several processes may inherit it.

    A port that another process listens on is refused here. If another process has bound the port
    and begins to listen later, `serve` raises.

    Args:
        host: a name or address; IPv6 addresses without brackets.
        port: 0 lets the system choose.

    Raises:
        ListenError: the message says what to do.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ListenError(host, port, "there is no such address on this machine") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ListenError(host, port, _reason(error)) from error
    sock.setblocking(False)
    return sock


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; stop the other server or choose another with --port"
    if error.errno == errno.EACCES:
        return "ports below 1024 need privileges; choose another with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return "there is no such address on this machine"
    return error.strerror or type(error).__name__


class _Server(uvicorn.Server):
    """uvicorn's server. Signals drain the application before connections are closed."""

    def __init__(
        self,
        app: FrontendApp,
        drain_timeout_s: float,
        log_level: str,
        on_ready: Callable[[], None] | None,
        on_drain: Callable[[], None] | None,
        on_second_signal: Callable[[], None] | None,
        tls: Tls | None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                loop="none",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level=log_level,
                server_header=False,
                # The client's address is not used. With proxy headers on, uvicorn would wrap every
                # send of a request.
                proxy_headers=False,
                # This must be longer than common proxies keep idle connections. Otherwise they send
                # requests into a connection that is closing.
                timeout_keep_alive=75,
                ssl_certfile=None if tls is None else tls.certfile,
                ssl_keyfile=None if tls is None else tls.keyfile,
                ssl_ca_certs=None if tls is None else tls.ca_certs,
                ssl_cert_reqs=ssl.CERT_NONE if tls is None else tls.cert_reqs,
            )
        )
        self._app = app
        self._drain_timeout_s = drain_timeout_s
        self._on_ready = on_ready
        self._on_drain = on_drain
        self._on_second_signal = on_second_signal
        self._loop = asyncio.get_running_loop()
        self._drain: asyncio.Task[None] | None = None
        self._drain_began_at = self._drained_s = 0.0
        self._signals = ShutdownSignals()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn: begins to accept connections."""
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Called by uvicorn: routes signals to `handle_exit` inside the block."""
        with self._signals.ignoring_repetitions(), super().capture_signals():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal: the first one drains, a second one exits at once."""
        # The loop may be busy, so the time of the signal counts, not that of the callback.
        self._loop.call_soon_threadsafe(self._on_signal, sig, time.monotonic())

    def _on_signal(self, sig: int, at: float) -> None:
        if self._drain is None:
            again = "Ctrl-C again" if sig == signal.SIGINT else "a second signal"
            self.drain(f"; {again} ends at once", at)
        elif self._signals.is_new_signal(at):
            self._exit()
            if self._on_second_signal is not None:
                self._on_second_signal()

    def drain(self, advice: str = "", at: float | None = None) -> None:
        """Refuses new requests, and exits once the running requests have ended. Idempotent.

        Args:
            advice: a text for the end of the log line.
            at: the time of the request to drain, from `time.monotonic`; None: now.
        """
        if self._drain is not None:
            return
        self._signals.begin(time.monotonic() if at is None else at)
        if self._app.num_in_flight:
            running = _requests(self._app.num_in_flight)
            _log.info("draining %s, up to %g s%s", running, self._drain_timeout_s, advice)
        self._app.start_draining()
        if self._on_drain is not None:
            self._on_drain()
        self._drain_began_at = self._loop.time()
        self._drain = self._loop.create_task(self._exit_when_drained())

    async def _exit_when_drained(self) -> None:
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await self._app.drained()
        except TimeoutError:
            pass
        self._exit()

    def _exit(self) -> None:
        self._drained_s = round(self._loop.time() - self._drain_began_at, 1)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn after the drain: ends unfinished requests with a 503."""
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        connections = self.server_state.connections
        for connection in list(connections):
            connection.shutdown()
        num_cut_off = self._app.cut_off()
        if num_cut_off:
            _log.warning("%s cut off after %g s", _requests(num_cut_off), self._drained_s)
        if not await self._ends_within(_LAST_RESPONSE_S):
            # A client that does not read would keep the server from exiting.
            for connection in list(connections):
                connection.transport.abort()
            await self._ends_within(_LAST_RESPONSE_S)

    async def _ends_within(self, timeout_s: float) -> bool:
        """Returns whether every connection and every task of a request ends in time."""
        end = self._loop.time() + timeout_s
        while self.server_state.connections or self.server_state.tasks:
            if self._loop.time() >= end:
                return False
            await asyncio.sleep(_POLL_S)
        return True


def _requests(count: int) -> str:
    return f"{count} request{'' if count == 1 else 's'}"


async def serve(
    app: FrontendApp,
    sockets: Sequence[socket.socket],
    *,
    drain_timeout_s: float = 30.0,
    log_level: str = "warning",
    stop: asyncio.Event | None = None,
    on_ready: Callable[[], None] | None = None,
    on_drain: Callable[[], None] | None = None,
    on_second_signal: Callable[[], None] | None = None,
    tls: Tls | None = None,
) -> None:
    """Serves until SIGTERM, SIGINT or `stop`; returns once everything is finished and closed.

    The first signal drains: `/ready` says 503, new requests are refused, running requests continue.
    A second signal, or the timeout, ends the running requests: they get a 503, and streams end with
    that error. A signal within half a second of the first is a repetition, which some parent
    processes send. Call it in the main thread, which receives the signals, and only when the engine
    can answer. It closes the sockets and the application at the end.

    Args:
        app: from `create_app`.
        sockets: from `bind`, or inherited.
        drain_timeout_s: seconds that running requests have to end.
        log_level: of uvicorn's own loggers; there is no access log.
        stop: set it to drain without a signal.
        on_ready: called once clients can connect and signals drain.
        on_drain: called when the drain begins.
        on_second_signal: called when a second signal ends the drain.
        tls: certificate and key; None serves plain HTTP.

    Raises:
        ListenError: another process began to listen on a port after `bind`.
    """
    server = _Server(app, drain_timeout_s, log_level, on_ready, on_drain, on_second_signal, tls)
    watcher = asyncio.create_task(_stop_on(stop, server)) if stop is not None else None
    try:
        _listen(sockets)
        await server.serve(sockets=list(sockets))
    finally:
        if watcher is not None:
            watcher.cancel()
        app.close()


def _listen(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        try:
            sock.listen(_BACKLOG)
        except OSError as error:
            host, port = sock.getsockname()[:2]
            raise ListenError(host, port, _reason(error)) from error


async def _stop_on(stop: asyncio.Event, server: _Server) -> None:
    await stop.wait()
    server.drain()
