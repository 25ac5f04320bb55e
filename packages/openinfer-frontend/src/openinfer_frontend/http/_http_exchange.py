"""One HTTP request and its response, over raw ASGI."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs

from pydantic import ValidationError

from openinfer_frontend._config import FrontendConfig
from openinfer_frontend.errors import ApiError, ClientGone
from openinfer_frontend.http._request_spans import RequestSpans
from openinfer_frontend.protocols._dialect import OPENAI, Dialect
from openinfer_frontend.protocols._generation_request import RequestModel
from openinfer_frontend.protocols._json import to_json
from openinfer_frontend.protocols._validation_errors import body_error

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
M = TypeVar("M", bound=RequestModel)

_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_MAX_QUERY_FIELDS = 32
ABORT = "openinfer.abort"
"""ASGI extension of this package's server: `abort()` closes the connection and drops its buffers.
"""
BEGIN_NOW = "openinfer.begin_now"
"""ASGI extension: `begin(headers, body)` sends the head of a response with status 200 and unknown
length, and the first part of its body, without a task. It returns False and sends nothing if the
send would have to wait, or if the server cannot do this for the connection."""
SEND_NOW = "openinfer.send_now"
"""ASGI extension: `send(body)` sends a later part of a body without a task. It returns False and
sends nothing if the send would have to wait."""


class PendingBodies:
    """The bodies of all requests that are being received or parsed.

    Attributes:
        num_bytes: their total size.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes

    def check(self) -> None:
        """Raises `ApiError` 503 if the total size exceeds the limit."""
        if self.num_bytes > self._max_bytes:
            message = "too many bytes of request bodies at once; try again later"
            raise ApiError.unavailable(message, refusal="pending_bodies")


class HttpExchange:
    """One HTTP request and its response; belongs to the task that handles it."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        config: FrontendConfig,
        bodies: "PendingBodies",
    ) -> None:
        self._extensions: dict[str, dict[str, Any]] = scope.get("extensions") or {}
        self._receive = receive
        self._send = send
        self._interruptible: asyncio.Task[Any] | None = None
        self._interruption: ApiError | None = None
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._blocked_since: float | None = None
        self._is_complete = False
        self._stall_timeout_s = config.stall_timeout_s
        self._bodies = bodies
        self._max_body_bytes = config.max_body_bytes
        self._body_timeout_s = config.body_timeout_s
        self._query: bytes = scope.get("query_string") or b""
        self.dialect: Dialect = OPENAI
        """The protocol of the route's errors; set before anything is sent."""
        self.cors_headers: list[tuple[bytes, bytes]] = []
        """Headers that are added to every response."""
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.route_path = "none"
        """The path of the route, as the table of routes spells it."""
        self.spans = RequestSpans()
        self.num_body_bytes = 0
        self.is_client_gone = False
        """Whether the task was cancelled because the client disconnected or stopped reading."""
        self.status: int | None = None
        """The status of the response, once its head was sent."""
        self.is_stream = False
        """Whether the response is a stream of events."""
        self._has_given_id = False
        self.request_id = os.urandom(16).hex()
        """The client's X-Request-Id, else a random one; part of every response."""

    @property
    def has_begun(self) -> bool:
        """Whether the head of the response was sent."""
        return self.status is not None

    def adopt_request_id(self) -> None:
        """Takes the client's X-Request-Id, if there is one.

        Raises:
            ApiError: the header is not 1 to 128 visible ASCII characters.
        """
        given = self.header("x-request-id")
        if given is not None:
            if not _REQUEST_ID.fullmatch(given):
                raise ApiError(
                    400,
                    "X-Request-Id must be 1 to 128 visible ASCII characters",
                    param="X-Request-Id",
                )
            self.request_id = given
            self._has_given_id = True

    def suggest_request_id(self, request_id: str) -> None:
        """Takes the request id of a body, unless a header has one."""
        if not self._has_given_id:
            self.request_id = request_id

    def header(self, name: str) -> str | None:
        """Returns the value of a request header by its lower-case name."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def query(self, name: str) -> str | None:
        """Returns the first value of a query parameter."""
        if not self._query:
            return None
        values = parse_qs(self._query.decode("latin-1"), max_num_fields=_MAX_QUERY_FIELDS)
        return next(iter(values.get(name, ())), None)

    async def read_model(self, model: type[M]) -> M:
        """Reads and validates the request's body. Call it inside `interruptible`.

        Raises:
            ApiError: 400, 408 or 413.
            ClientGone: the connection closes first.
        """
        media_type = (self.header("content-type") or "application/json").partition(";")[0]
        if media_type.strip().lower() != "application/json":
            raise ApiError(400, "Content-Type must be application/json")
        try:
            body = await self._read_body()
            # An absent body counts as an empty object, so that the error names the missing fields.
            read = model.model_validate_json(body or b"{}")
            self.spans.mark("read")
            return read
        except ValidationError as error:
            raise body_error(error, model, body) from None
        finally:
            self._bodies.num_bytes -= self.num_body_bytes

    async def _read_body(self) -> bytes:
        announced = self.header("content-length")
        if announced is not None and announced.isdecimal():
            self._check_size(int(announced))
        parts = []
        # A timer is cheaper than a timeout block, and the body has nearly always arrived.
        timer = asyncio.get_running_loop().call_later(self._body_timeout_s, self._interrupt_body)
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client closed the connection")
                part = message.get("body", b"")
                self.num_body_bytes += len(part)
                self._bodies.num_bytes += len(part)
                self._check_size(self.num_body_bytes)
                self._bodies.check()
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
        finally:
            timer.cancel()

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_body_bytes:
            message = f"the body exceeds {self._max_body_bytes} bytes (--max-body-bytes)"
            raise ApiError(413, message)

    def _interrupt_body(self) -> None:
        self.interrupt(ApiError(408, "the request body did not arrive in time"))

    def interrupt(self, error: ApiError) -> bool:
        """Cancels the task's current wait and makes it respond with an error.

        A stream that has begun ends with the error.

        Returns:
            False if the response is already complete or on its way.
        """
        if self._interruptible is None or (self.has_begun and not self.is_stream):
            return False
        self._interruption = error
        self._interruptible.cancel()
        return True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Marks the block that `interrupt` can end; its error replaces the CancelledError."""
        outer, task = self._interruptible, asyncio.current_task()
        assert task is not None
        self._interruptible = task
        try:
            yield
        except asyncio.CancelledError:
            error, self._interruption = self._interruption, None
            if error is None:
                raise
            task.uncancel()
            raise error from None
        finally:
            self._interruptible = outer

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Cancels the task if the client disconnects or stops reading while inside the block.

        Enter it after the body was read. `is_client_gone` tells this cancellation from others.
        """
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.create_task(self._cancel_when_gone(task))
        try:
            yield
        finally:
            watcher.cancel()

    async def _cancel_when_gone(self, task: "asyncio.Task[None]") -> None:
        while not self.is_client_gone:
            try:
                async with asyncio.timeout(self._stall_timeout_s):
                    message = await self._receive()
                # The server sends the same message after a complete response.
                if self._is_complete:
                    return
                self.is_client_gone = message["type"] == "http.disconnect"
            except TimeoutError:
                self.is_client_gone = self._has_stalled()
                if self.is_client_gone and ABORT in self._extensions:
                    # A normal close waits until the client has read what is buffered.
                    self._extensions[ABORT]["abort"]()
        task.cancel()

    def _has_stalled(self) -> bool:
        since = self._blocked_since
        now = asyncio.get_running_loop().time()
        return since is not None and now - since >= self._stall_timeout_s

    async def respond(
        self, status: int, body: bytes, *headers: tuple[bytes, bytes], media_type: bytes = b""
    ) -> None:
        """Sends a complete response."""
        await self._transmit(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", media_type or b"application/json"),
                    (b"content-length", b"%d" % len(body)),
                    (b"x-request-id", self.request_id.encode()),
                    *self.cors_headers,
                    *headers,
                ],
            }
        )
        await self._write(body, more=False)

    async def respond_json(self, value: object, status: int = 200) -> None:
        """Sends a JSON response."""
        await self.respond(status, to_json(value))

    async def respond_error(self, error: ApiError) -> None:
        """Sends an error, as a response or as the last event of a stream that has begun."""
        if self.is_stream:
            await self.end_stream(self.dialect.error_event(error, self.request_id))
        elif not self.has_begun:
            body = to_json(self.dialect.error_body(error, self.request_id))
            await self.respond(error.status, body, *error.headers())

    async def begin_stream(self) -> None:
        """Sends the head of a stream of events."""
        headers = self._stream_headers()
        await self._transmit({"type": "http.response.start", "status": 200, "headers": headers})
        self.is_stream = True

    def begin_now(self, events: bytes) -> bool:
        """Sends the head of a stream and its first events, if that needs no waiting.

        Returns:
            False if nothing was sent: the send would have to wait, or the server cannot send at
                once.
        """
        begin = self._extensions.get(BEGIN_NOW, {}).get("begin")
        if begin is None or not begin(self._stream_headers(), events):
            return False
        self.spans.mark("first byte")
        self.status, self.is_stream = 200, True
        return True

    def _stream_headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", self.request_id.encode()),
            *self.cors_headers,
        ]

    async def send_events(self, events: bytes) -> None:
        """Sends events, if there are any, and returns when the connection accepts more."""
        if events:
            await self._write(events, more=True)

    @property
    def send_now(self) -> Callable[[bytes], bool] | None:
        """A function that sends events at once; it returns False if it would have to wait.

        None if the server cannot send at once. Call it only while no other send of this exchange
        runs.
        """
        send: Callable[[bytes], bool] | None = self._extensions.get(SEND_NOW, {}).get("send")
        return send

    async def end_stream(self, events: bytes = b"") -> None:
        """Sends the last events and the mark that ends a stream."""
        self.is_stream = False
        await self._write(events + self.dialect.end_mark, more=False)

    async def _write(self, body: bytes, *, more: bool) -> None:
        self._is_complete = not more
        await self._transmit({"type": "http.response.body", "body": body, "more_body": more})

    async def _transmit(self, message: Message) -> None:
        self._blocked_since = asyncio.get_running_loop().time()
        status: int | None = message.get("status")
        if status is not None:
            self.spans.mark("first byte")
        await self._send(message)
        self._blocked_since = None
        if status is not None:
            self.status = status
