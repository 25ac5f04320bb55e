"""The engine as its users see it: one Protocol, and two ways to read a stream."""

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
    """Where one request's events go.

    Called from a thread of the engine's choosing, never concurrently for one request. It must
    return at once: it may not block, nor call back into the engine except for `abort`.
    """

    def __call__(self, event: TokenEvent, /) -> None:
        """Takes the next event of the stream."""


class EngineHandle(Protocol):
    """One engine: one scheduler, one cache, one data-parallel rank.

    Several engines are composed by a router, never inside a handle. Methods may be called from
    the thread (or event loop) that owns the handle; `submit` and `abort` never block.
    """

    @property
    def info(self) -> EngineInfo:
        """Identity, limits and abilities. Constant while the engine lives."""

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> "Ticket":
        """Hands over a request. Whatever becomes of it arrives at `sink`, a rejection too.

        Raises:
            EngineDead: if the engine is gone; the sink is then never called.
        """

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Ends requests; each gets its terminal event. Unknown and ended ids are ignored."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Runs a command between two steps. The future fails with EngineDead if it ends first."""

    def load(self) -> Load:
        """The latest known load; it may lag the engine by a fraction of a second."""

    def drain(self) -> "Future[None]":
        """Refuses new requests from now on; done when the last live one has ended."""

    def close(self) -> None:
        """Ends the engine. Live requests fail. Idempotent; returns when all is released."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A submitted request."""

    engine: EngineHandle
    request_id: str

    def abort(self) -> None:
        """Ends the request; its terminal event still arrives."""
        self.engine.abort((self.request_id,))


class EventBuffer:
    """A sink whose reader gets one event at a time: what it has missed is merged.

    `put` may be called from any thread. Reading is either `get` (async, from the loop the buffer
    was made in) or `get_blocking`, not both.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._lock = threading.Condition()
        self._pending: MergeBuffer[TokenEvent] | None = None
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._loop_thread = threading.get_ident()

    def __call__(self, event: TokenEvent, /) -> None:
        """Takes an event; merges it with those not yet read."""
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
        """Everything that happened since the last read, as one event."""
        assert self._loop is not None, "made without an event loop: use get_blocking"
        while (event := self._take()) is None:
            self._waiter = self._loop.create_future()
            if self._pending is None:
                await self._waiter
            self._waiter = None
        return event

    def get_blocking(self, timeout: float | None = None) -> TokenEvent:
        """Like `get`, for a thread.

        Raises:
            TimeoutError: after `timeout` seconds without an event.
        """
        with self._lock:
            if not self._lock.wait_for(lambda: self._pending is not None, timeout):
                raise TimeoutError(f"no event for {timeout} s")
        event = self._take()
        assert event is not None, "two readers"
        return event


async def stream(engine: EngineHandle, request: GenerateRequest) -> AsyncIterator[TokenEvent]:
    """The events of one request, merged while the reader is busy; the last one has an `end`.

    Leaving the iteration early (break, cancellation, `aclose`) aborts the request.

    Raises:
        EngineDead: if the engine is gone at submit.
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
