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
"""ASGI extension of our own server: `abort()` drops the connection and what it has buffered."""
BEGIN_NOW = "openinfer.begin_now"
"""Another: `begin(headers, body)` sends the head of a response to a POST, with status 200 and a
body of unknown length, and the first part of that body, without a task that waits; False, and
nothing is sent, where it would have to wait, or has no short way."""
SEND_NOW = "openinfer.send_now"
"""Another: `send(body)` sends a part of a body that is not the first, without a task that waits;
False, and nothing is sent, where it would have to wait."""


class PendingBodies:
    """Bodies of all requests of one app that are being received or read.

    Attributes:
        num_bytes: what they hold together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes

    def check(self) -> None:
        """Raises `ApiError` 503 if there is too much."""
        if self.num_bytes > self._max_bytes:
            message = "too many bytes of requests at once"
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
        """How the route spells its errors; set before anything is answered."""
        self.cors_headers: list[tuple[bytes, bytes]] = []
        """Added to every response."""
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.route_path = "none"
        """The path of the route that answers, as the table of routes has it."""
        self.spans = RequestSpans()
        self.num_body_bytes = 0
        self.is_client_gone = False
        """Whether the task was cancelled because nobody reads the response any more."""
        self.status: int | None = None
        """Of the response, once its head was sent."""
        self.is_stream = False
        """Whether the response is a stream of events."""
        self._has_given_id = False
        self.request_id = os.urandom(16).hex()
        """The client's X-Request-Id, else made up; echoed in every response."""

    @property
    def has_begun(self) -> bool:
        """Whether the status line is out."""
        return self.status is not None

    def adopt_request_id(self) -> None:
        """Adopts the client's X-Request-Id.

        Raises:
            ApiError: if it is not 1 to 128 visible ASCII characters.
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
        """A body's own name for the request; one in a header comes first."""
        if not self._has_given_id:
            self.request_id = request_id

    def header(self, name: str) -> str | None:
        """The value of a request header, by its lower-case name."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def query(self, name: str) -> str | None:
        """The first value of a parameter of the query."""
        if not self._query:
            return None
        values = parse_qs(self._query.decode("latin-1"), max_num_fields=_MAX_QUERY_FIELDS)
        return next(iter(values.get(name, ())), None)

    async def read_model(self, model: type[M]) -> M:
        """The request's body, validated; to be called where `interrupt` works.

        Raises:
            ApiError: 400, 408 or 413.
            ClientGone: if the connection closes first.
        """
        media_type = (self.header("content-type") or "application/json").partition(";")[0]
        if media_type.strip().lower() != "application/json":
            raise ApiError(400, "Content-Type must be application/json")
        try:
            body = await self._read_body()
            # No body is one without fields: the answer says which are missing.
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
        # Cheaper than a block with a timeout, for what is nearly always there.
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
        """Has the task answer with an error, whatever it waits for; False if its answer is there.

        A stream that has begun ends with the error.
        """
        if self._interruptible is None or (self.has_begun and not self.is_stream):
            return False
        self._interruption = error
        self._interruptible.cancel()
        return True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Where `interrupt` works: its error leaves the block in place of the cancellation."""
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
        """While inside, a client that hangs up or stops reading cancels the task.

        Enter after the body was read. `is_client_gone` tells this cancellation from others.
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
                # The server says the same once the response is complete.
                if self._is_complete:
                    return
                self.is_client_gone = message["type"] == "http.disconnect"
            except TimeoutError:
                self.is_client_gone = self._has_stalled()
                if self.is_client_gone and ABORT in self._extensions:
                    # A close would wait until the client has read what is buffered.
                    self._extensions[ABORT]["abort"]()
        task.cancel()

    def _has_stalled(self) -> bool:
        since = self._blocked_since
        now = asyncio.get_running_loop().time()
        return since is not None and now - since >= self._stall_timeout_s

    async def respond(
        self, status: int, body: bytes, *headers: tuple[bytes, bytes], media_type: bytes = b""
    ) -> None:
        """Sends a whole response."""
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
        """Sends an error: a response, or the last event of a stream that has begun."""
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
        """As `begin_stream` and `send_events`, if nothing has to be waited for.

        Else, and where the server lacks it, False, and nothing is sent.
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
        """Sends events, if there are any; returns when the connection takes more."""
        if events:
            await self._write(events, more=True)

    @property
    def send_now(self) -> Callable[[bytes], bool] | None:
        """As `send_events`, if nothing has to be waited for; else False, and nothing is sent.

        Only while no other send of this exchange is under way. None where the server lacks it.
        """
        send: Callable[[bytes], bool] | None = self._extensions.get(SEND_NOW, {}).get("send")
        return send

    async def end_stream(self, events: bytes = b"") -> None:
        """Sends the last events and the end mark."""
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
