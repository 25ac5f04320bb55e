"""The client of an engine process: an `EngineHandle` over a socket, for asyncio.

No stream has a task of its own. One protocol callback cuts the received bytes into frames and
passes each row to its sink.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

from openinfer_contract import (
    Abort,
    ClientMessage,
    Close,
    Command,
    CommandResult,
    ContractVersionError,
    Control,
    ControlResult,
    Drain,
    Drained,
    EngineDead,
    EngineFrameReader,
    EngineInfo,
    EngineMessage,
    EventSink,
    Failed,
    GenerateRequest,
    Hello,
    Load,
    LoadReport,
    Rejected,
    StepEvents,
    StreamOrderError,
    StreamState,
    Submit,
    Ticket,
    TokenEvent,
    WireError,
    check_request,
    encode_frame,
)
from openinfer_engine.process._address import split_address

MAX_OUTGOING_BYTES = 64 * 1024 * 1024
_LARGEST_STREAM_ID = 2**32 - 1

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Stream:
    request_id: str
    sink: EventSink
    state: StreamState = field(init=False)
    is_open: bool = False
    """Whether an event has arrived. After that, events with nothing but tokens need no check."""

    def __post_init__(self) -> None:
        self.state = StreamState(self.request_id)

    def deliver(self, event: TokenEvent) -> bool:
        """Calls the sink; returns False if it raised."""
        try:
            self.sink(event)
        except Exception:
            _logger.exception("the sink of request %r has failed", self.request_id)
            return False
        return True


class RemoteEngine(asyncio.Protocol):
    """An `EngineHandle` over a socket. Belongs to the event loop that connected it.

    When the connection ends, every live request gets `Failed(is_retryable=True)`, and `submit`
    raises EngineDead from then on. Sinks are called from the event loop. Writes never block: if
    more than `max_outgoing_bytes` wait for the engine to read them, further requests are rejected
    as overloaded.
    """

    def __init__(self, max_outgoing_bytes: int = MAX_OUTGOING_BYTES) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_outgoing_bytes = max_outgoing_bytes
        self._frames = EngineFrameReader()
        self._transport: asyncio.Transport | None = None
        self._info: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._died: asyncio.Future[str] = self._loop.create_future()
        self._death: str | None = None
        self._load = Load()
        self._streams: dict[int, _Stream] = {}
        self._stream_ids: dict[str, tuple[int, ...]] = {}
        self._next_stream_id = 0
        self._calls: dict[int, Future[CommandResult]] = {}
        self._next_call_id = 0
        self._drains: list[Future[None]] = []
        self.last_heard = self._loop.time()
        """Event loop time at which data last arrived."""

    @classmethod
    async def connect(
        cls,
        address: str | socket.socket,
        *,
        max_outgoing_bytes: int = MAX_OUTGOING_BYTES,
    ) -> "RemoteEngine":
        """Connects to an engine and waits for its `Hello`.

        Args:
            address: `unix:PATH`, `tcp:HOST:PORT`, or a connected socket, which is owned from now
                on.
            max_outgoing_bytes: upper bound of bytes that wait for the engine to read them.

        Raises:
            AddressRejected: the address is malformed or not loopback.
            EngineDead: no engine answers there with a `Hello`.
            ContractVersionError: the engine speaks another version of the contract.
        """
        loop = asyncio.get_running_loop()
        engine = cls(max_outgoing_bytes)
        try:
            if isinstance(address, socket.socket):
                address.setblocking(False)
                if address.family == socket.AF_UNIX:
                    await loop.create_unix_connection(lambda: engine, sock=address)
                else:
                    await loop.create_connection(lambda: engine, sock=address)
            else:
                scheme, place, port = split_address(address)
                if scheme == "unix":
                    await loop.create_unix_connection(lambda: engine, place)
                else:
                    await loop.create_connection(lambda: engine, place, port)
        except OSError as error:
            reason = f"no engine answers: {error.strerror or error}"
            raise EngineDead(reason) from error
        try:
            await engine._info
        except BaseException:
            engine.disconnect()
            raise
        return engine

    @property
    def info(self) -> EngineInfo:
        """The engine's identity, limits and abilities."""
        return self._info.result()

    @property
    def num_live(self) -> int:
        """Number of this handle's live requests."""
        return len(self._streams)

    @property
    def is_dead(self) -> bool:
        """Whether the connection has ended."""
        return self._death is not None

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Submits a request; see `EngineHandle.submit`.

        Raises:
            EngineDead: the engine has ended.
        """
        transport = self._alive()
        try:
            frame = encode_frame(Submit(self._free_stream_id(), request))
        except (OverflowError, UnicodeEncodeError, WireError) as error:
            sink(TokenEvent(end=self._rejection_of_unsendable(request, error)))
            return Ticket(self, request.request_id)
        if transport.get_write_buffer_size() + len(frame) > self._max_outgoing_bytes:
            rejected = Rejected(
                kind="overloaded",
                message="the engine does not keep up with reading requests",
                retry_after_s=1.0,
            )
            sink(TokenEvent(end=rejected))
        else:
            request_id, stream_id = request.request_id, self._next_stream_id
            self._streams[stream_id] = _Stream(request_id, sink)
            self._stream_ids[request_id] = (*self._stream_ids.get(request_id, ()), stream_id)
            self._next_stream_id = (stream_id + 1) & _LARGEST_STREAM_ID
            transport.write(frame)
        return Ticket(self, request.request_id)

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts requests; each still gets its last event. Unknown and finished ids are ignored."""
        known = (self._stream_ids.get(request_id, ()) for request_id in request_ids)
        stream_ids = tuple(stream_id for ids in known for stream_id in ids)
        if stream_ids and self._death is None:
            self._send(Abort(stream_ids))

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Runs a command between two steps. Await the future with `asyncio.wrap_future`."""
        future: Future[CommandResult] = Future()
        if self._death is not None:
            future.set_exception(EngineDead(self._death))
            return future
        call_id = self._next_call_id
        self._next_call_id += 1
        self._calls[call_id] = future
        self._send(Control(call_id, command))
        return future

    def load(self) -> Load:
        """Returns the load as last reported, at most a quarter of a second ago."""
        return self._load

    def drain(self) -> "Future[None]":
        """Rejects new requests; the future completes when the last live one has ended."""
        future: Future[None] = Future()
        if self._death is not None:
            future.set_exception(EngineDead(self._death))
            return future
        self._drains.append(future)
        self._send(Drain())
        return future

    def close(self) -> None:
        """Ends the engine itself, for all its clients. Live requests fail. Idempotent."""
        if self._death is None and self._transport is not None:
            self._send(Close())
            self._transport.close()
        self._die("the engine was closed")

    def disconnect(self) -> None:
        """Closes the connection; the engine then aborts this handle's requests. Idempotent."""
        self._die("disconnected from the engine")

    async def wait_dead(self) -> str:
        """Waits until the engine is gone, and returns why."""
        return await asyncio.shield(self._died)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(Hello(peer="openinfer_engine.RemoteEngine"))

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        detail = f": {error}" if error is not None else ""
        self._die(f"the connection to the engine has ended{detail}")

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self.last_heard = self._loop.time()
        try:
            for message in self._frames.feed(data):
                self._handle(message)
        except ContractVersionError as error:
            if not self._info.done():
                self._info.set_exception(error)
            self._die(str(error))
        except (WireError, StreamOrderError) as error:
            _logger.error("the engine breaks the contract: %s", error)
            self._die(f"the engine breaks the contract: {error}")

    def _handle(self, message: EngineMessage) -> None:
        if isinstance(message, StepEvents):
            for stream_id, event in message.rows():
                self._dispatch(stream_id, event)
        elif isinstance(message, LoadReport):
            self._load = message.load
        elif isinstance(message, ControlResult):
            future = self._calls.pop(message.call_id, None)
            if future is None:
                raise WireError(f"a result for call {message.call_id}, which does not exist")
            if future.set_running_or_notify_cancel():
                future.set_result(message.result)
        elif isinstance(message, Drained):
            drains, self._drains = self._drains, []
            for drained in drains:
                if drained.set_running_or_notify_cancel():
                    drained.set_result(None)
        else:
            if message.info is None or self._info.done():
                raise WireError("a Hello without info, or a second Hello")
            self._info.set_result(message.info)

    def _dispatch(self, stream_id: int, event: TokenEvent) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            raise WireError(f"an event for stream {stream_id}, which is not open")
        has_end = event.end is not None
        if has_end or not (stream.is_open and event.token_ids and event.scheduled is None):
            stream.state.advance(event)
            stream.is_open = True
        if has_end:
            self._drop_stream(stream_id, stream.request_id)
        if not stream.deliver(event) and stream_id in self._streams:
            # By stream id: a rejected duplicate has the request id of another live request.
            self._send(Abort((stream_id,)))

    def _drop_stream(self, stream_id: int, request_id: str) -> None:
        del self._streams[stream_id]
        others = tuple(i for i in self._stream_ids[request_id] if i != stream_id)
        if others:
            self._stream_ids[request_id] = others
        else:
            del self._stream_ids[request_id]

    def _rejection_of_unsendable(self, request: GenerateRequest, error: Exception) -> Rejected:
        """Returns the engine's rejection of a request that no frame can hold."""
        return check_request(request, self.info) or Rejected(
            kind="invalid", message=f"the request cannot be sent to the engine: {error}"
        )

    def _free_stream_id(self) -> int:
        while self._next_stream_id in self._streams:
            self._next_stream_id = (self._next_stream_id + 1) & _LARGEST_STREAM_ID
        return self._next_stream_id

    def _alive(self) -> asyncio.Transport:
        if self._death is not None:
            raise EngineDead(self._death)
        assert self._transport is not None
        return self._transport

    def _send(self, message: ClientMessage) -> None:
        self._alive().write(encode_frame(message))

    def _die(self, reason: str) -> None:
        """Ends the connection once. Live requests fail, pending calls fail with EngineDead."""
        if self._death is not None:
            return
        self._death = reason
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        if not self._info.done():
            self._info.set_exception(EngineDead(reason))
        if not self._died.done():
            self._died.set_result(reason)
        streams, self._streams = self._streams, {}
        self._stream_ids.clear()
        failed = TokenEvent(end=Failed(message=reason, is_retryable=True))
        for stream in streams.values():
            stream.deliver(failed)
        waiting: list[Future[Any]] = [*self._calls.values(), *self._drains]
        self._calls.clear()
        self._drains.clear()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineDead(reason))
