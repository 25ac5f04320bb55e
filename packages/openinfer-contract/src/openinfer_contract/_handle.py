"""The engine as its clients see it: one Protocol, and two ways to read a request's events."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from openinfer_contract._commands import Command, CommandResult
from openinfer_contract._events import TokenEvent
from openinfer_contract._info import EngineInfo, Load
from openinfer_contract._merge_buffer import MergeBuffer
from openinfer_contract._request import GenerateRequest


class EventSink(Protocol):
    """A callable that receives the events of one request.

    The engine calls it from a thread of its own choice, never concurrently for one request. It must
    return at once: it must not block, and the only engine method that it may call is `abort`.
    """

    def __call__(self, event: TokenEvent, /) -> None:
        """Receives the next event of the request."""


class EngineHandle(Protocol):
    """One engine: one scheduler, one KV cache, one data-parallel rank.

    A handle never hides several engines: a router composes them. Call the methods from the thread
    or event loop that owns the handle. `submit` and `abort` never block.
    """

    @property
    def info(self) -> EngineInfo:
        """The engine's identity, limits and abilities, constant while it lives."""

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> "Ticket":
        """Submits a request, whose events then arrive at `sink`. A rejection is an event, too.

        Raises:
            EngineDead: the engine has ended; `sink` is never called.
        """

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts requests; each still gets its last event. Unknown and finished ids are ignored."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Runs a command between two steps.

        The future fails with EngineDead if the engine ends first.
        """

    def load(self) -> Load:
        """Returns the latest known load, which may be a quarter of a second old."""

    def drain(self) -> "Future[None]":
        """Rejects new requests from now on.

        The future completes when the last live request has ended.
        """

    def close(self) -> None:
        """Ends the engine and fails its live requests. Idempotent.

        It returns when the engine's process, threads and memory are gone.
        """


@dataclass(frozen=True, slots=True)
class Ticket:
    """A submitted request."""

    engine: EngineHandle
    request_id: str

    def abort(self) -> None:
        """Aborts the request; its last event still arrives."""
        self.engine.abort((self.request_id,))


class EventBuffer:
    """A sink that merges unread events into one.

    Any thread may call the buffer. Read it either with `get`, from the event loop that was given at
    construction, or with `get_blocking`; never with both.

    Args:
        loop: the event loop of the reader. None: the reader uses `get_blocking`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._lock = threading.Condition()
        self._pending: MergeBuffer[TokenEvent] | None = None
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._loop_thread = threading.get_ident()

    def __call__(self, event: TokenEvent, /) -> None:
        """Adds an event to those that have not been read."""
        with self._lock:
            was_empty = self._pending is None
            if self._pending is None:
                self._pending = MergeBuffer()
            self._pending.add(event, event.num_tokens)
            self._lock.notify()
        if was_empty and self._loop is not None:
            if threading.get_ident() == self._loop_thread:
                self._wake()
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> TokenEvent | None:
        with self._lock:
            buffer, self._pending = self._pending, None
        return None if buffer is None else buffer.merge_all()

    async def get(self) -> TokenEvent:
        """Waits for and returns everything since the last read, as one event."""
        assert self._loop is not None, "made without an event loop: use get_blocking"
        while (event := self._take()) is None:
            self._waiter = self._loop.create_future()
            if self._pending is None:
                await self._waiter
            self._waiter = None
        return event

    def get_blocking(self, timeout: float | None = None) -> TokenEvent:
        """Blocks until there is an event, and returns everything since the last read.

        Raises:
            TimeoutError: there was no event for `timeout` seconds.
        """
        with self._lock:
            if not self._lock.wait_for(lambda: self._pending is not None, timeout):
                raise TimeoutError(f"no event for {timeout} s")
        event = self._take()
        assert event is not None, "two readers"
        return event


async def stream(engine: EngineHandle, request: GenerateRequest) -> AsyncIterator[TokenEvent]:
    """Yields the events of one request. Events that arrive while the reader is busy are merged.

    The last event has an `end`.
    Leaving the iteration early (break, cancellation, `aclose`) aborts the request.

    Raises:
        EngineDead: the engine has ended before the request could be submitted.
    """
    buffer = EventBuffer(asyncio.get_running_loop())
    ticket = engine.submit(request, buffer)
    is_ended = False
    try:
        while not is_ended:
            event = await buffer.get()
            is_ended = event.end is not None
            yield event
    finally:
        if not is_ended:
            ticket.abort()
