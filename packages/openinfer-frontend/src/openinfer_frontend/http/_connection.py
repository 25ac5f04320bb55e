"""uvicorn's connection, with limits that uvicorn does not have."""

import asyncio
import socket
import struct
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from openinfer_frontend.errors import ApiError
from openinfer_frontend.http._http_exchange import ABORT, BEGIN_NOW, SEND_NOW
from openinfer_frontend.protocols._json import to_json

HEAD_TIMEOUT_S = 30.0
"""Maximum seconds for a request line and its headers to arrive."""
MAX_HEAD_BYTES = 1 << 16
"""Maximum size of a head; a longer one is a 431, unless it ends in the packet that passes the
limit. Also the maximum size of trailers and chunk extensions."""
REFUSED_TIMEOUT_S = 1.0
"""Seconds for which the rest of a request is read and dropped after its head was refused. Closing
at once would lose the response that the client has not read yet."""
UNREAD_TIMEOUT_S = 30.0
"""Maximum seconds for the rest of a request to arrive after its response is complete."""


class _Parser(HttpRequestParser):
    """A parser that ignores offers of another protocol (`Upgrade: h2c`).

    The base class stops after the head of such a request, so that the new protocol can take over.
    No other protocol is served here, and the body would be lost.
    """

    def __init__(self, connection: "Connection") -> None:
        super().__init__(connection)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own parser
        self._connection = connection

    def feed_data(self, data: "bytes | bytearray | memoryview | array[int]") -> None:
        connection, parser, rest = self._connection, self, memoryview(data)
        while True:
            try:
                HttpRequestParser.feed_data(parser, rest)
                return
            except HttpParserUpgrade as stop:
                head = connection.take_upgrade_head()
                if head is None:
                    raise
                # If the connection closes after this request, the base class has stopped and reads
                # no further.
                parser = connection.parser = _Parser(connection)
                HttpRequestParser.feed_data(parser, head)
                rest = rest[stop.args[0] :]


class Connection(HttpToolsProtocol):
    """One client's connection."""

    _is_close_delimited = False
    """Whether the current response has neither a length nor chunks, so that only closing the
    connection ends it."""
    _is_in_head = False
    _is_in_body = False
    """Whether a request's head has arrived and its end has not."""
    _has_brought_body = False
    """Whether the current packet contains bytes of a body."""
    _num_requests = 0
    """Number of requests that have begun on this connection."""
    _upgrade_head: bytes | None = None
    """The last head without its `Upgrade` header, until it is parsed again."""
    _num_head_bytes = 0
    """Bytes received since the last body byte: head, trailers, chunk extensions. At most
    MAX_HEAD_BYTES."""
    _is_refused = False
    """Whether the connection no longer parses what it receives."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the loop: starts to expect a request."""
        super().connection_made(transport)
        self.parser = _Parser(self)
        self._is_in_head = True
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: stops the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by the loop: parses a packet. A head or trailers that are too long are refused."""
        if self._is_refused:
            return
        self._has_brought_body = False
        super().data_received(data)
        if self._is_in_head or self._is_in_body:
            self._num_head_bytes = 0 if self._has_brought_body else self._num_head_bytes + len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
            elif self._is_in_head and self._timer is None:
                self._time_head()
        elif self.timeout_keep_alive_task is None and self._is_idle():
            # uvicorn stops this timer at every packet, and starts it only after a response.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        """Called by the parser: a request begins."""
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._num_requests += 1
        self.scope["extensions"] = {
            ABORT: {"abort": self._abort},
            BEGIN_NOW: {"begin": partial(self._begin_now, self._num_requests)},
            SEND_NOW: {"send": self._send_now},
        }
        if not self._is_in_head:
            self._is_in_head = True
            self._num_head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser: adds a header. Trailers are dropped; the application reads none."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called by the parser: the head is complete."""
        self._upgrade_head = self._head_without_upgrade()
        if self._upgrade_head is not None:
            return
        self._is_in_head, self._is_in_body = False, True
        self._num_head_bytes = 0
        self._stop_timer()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self._send_without_chunks()

    def on_body(self, body: bytes) -> None:
        """Called by the parser: passes a part of the body on."""
        self._has_brought_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser: the request is complete."""
        if self._upgrade_head is not None:
            return
        self._is_in_body = False
        self._stop_timer()
        super().on_message_complete()

    def take_upgrade_head(self) -> bytes | None:
        """Returns the head of a request that offered another protocol, without the offer."""
        head, self._upgrade_head = self._upgrade_head, None
        return head

    def _head_without_upgrade(self) -> bytes | None:
        parser = self.parser
        if not parser.should_upgrade():
            return None
        headers = [header for header in self.headers if header[0] != b"upgrade"]
        if len(headers) == len(self.headers):  # a CONNECT request
            return None
        version = parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in headers]
        return b"\r\n".join([*lines, b"", b""])

    def on_response_complete(self) -> None:
        """Called by a response at its end: gives the rest of its request a time limit."""
        super().on_response_complete()
        if self._is_in_body and self._is_idle():
            self._stop_timer()
            self._timer = self.loop.call_later(UNREAD_TIMEOUT_S, self._close)

    def _is_idle(self) -> bool:
        """Whether the last response is complete and the connection stays open."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        return is_answered and not self.transport.is_closing()

    def _send_without_chunks(self) -> None:
        """Makes a body of unknown length end with the connection: HTTP/1.0 has no chunks."""
        cycle, send = self.cycle, self.cycle.send

        async def send_plain(message: Any) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                if b"content-length" not in names:
                    self._is_close_delimited = True
                    cycle.chunked_encoding = cycle.keep_alive = False
            elif self._is_close_delimited:
                cycle.expected_content_length = len(message["body"])
            await send(message)

        cycle.send = send_plain  # type: ignore[method-assign]

    def _time_head(self) -> None:
        # Most heads arrive in one packet. Only the others get a timer.
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_head(self) -> None:
        """Responds with a 431, or closes the connection if an earlier request is unfinished."""
        is_free = self.cycle is None or self.cycle.response_complete
        if not (self._is_in_head and is_free):
            self._close()
            return
        self._is_refused = True
        self._stop_timer()
        error = ApiError(431, f"the head of the request exceeds {MAX_HEAD_BYTES} bytes")
        body = to_json(error.body())
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[431] + head % len(body) + body)
        self._timer = self.loop.call_later(REFUSED_TIMEOUT_S, self._close)

    def _close(self) -> None:
        self._stop_timer()
        self.transport.close()

    def _begin_now(self, number: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        cycle = self.cycle
        # If the client has already sent its next request, the cycle is that request's, which must
        # wait.
        if self._num_requests != number or self.flow.write_paused or cycle.disconnected:
            return False
        if not cycle.keep_alive:  # also HTTP/1.0, which has no chunks
            return False
        cycle.response_started = cycle.chunked_encoding = True
        head = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
        head.append(b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body))
        self.transport.write(STATUS_LINE[200] + b"".join(head))
        return True

    def _send_now(self, body: bytes) -> bool:
        # If the client has already sent its next request, the cycle is that request's and has no
        # response yet.
        cycle = self.cycle
        if self.flow.write_paused or cycle.disconnected:
            return False
        if cycle.chunked_encoding:
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
            return True
        if self._is_close_delimited:
            self.transport.write(body)
        return self._is_close_delimited

    def _abort(self) -> None:
        # Without SO_LINGER the kernel keeps its send buffer until the peer reads, long after the
        # close.
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
