"""Several streams of events read as one, without a queue: what was not read yet is merged."""

import asyncio
import threading
from collections.abc import Callable

from openinfer_contract import EventSink, TokenEvent


class EventFanIn:
    """Sinks for the streams of one HTTP request, and one reader.

    Every stream holds at most one pending event, as `openinfer_contract.EventBuffer` does, so a
    reader that is slow costs its own output and no more. Sinks may be called from any thread;
    `get` belongs to the event loop the object was made in.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._pending: dict[int, TokenEvent] = {}
        self._waiter: asyncio.Future[None] | None = None
        self.on_events: Callable[[], bool] | None = None
        """Called on the event loop when the reader waits and something has come. It may take what
        there is; True lets the reader wait on. What it raises, the reader does."""
        self._error: Exception | None = None
        self._has_end = False
        """Whether a stream's last event is pending."""

    def sink(self, index: int) -> EventSink:
        """The sink of stream `index`."""

        def put(event: TokenEvent, /) -> None:
            self._put(index, event)

        return put

    def _put(self, index: int, event: TokenEvent) -> None:
        with self._lock:
            earlier = self._pending.get(index)
            was_empty = not self._pending
            self._pending[index] = event if earlier is None else earlier.merged(event)
            if event.end is not None:
                self._has_end = True
        if was_empty:
            if threading.get_ident() == self._loop_thread:
                self._wake()
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        waiter = self._waiter
        # Between its waking and its running the reader may hold events that come first.
        if waiter is None or waiter.done():
            return
        try:
            if self.on_events is not None and self.on_events():
                return
        except Exception as error:
            self._error = error
        # What was called may have ended a stream, and an engine may say so at once, by a sink.
        if not waiter.done():
            waiter.set_result(None)

    async def get(self) -> dict[int, TokenEvent]:
        """What happened since the last read, one event a stream, in order of arrival.

        Empty if `on_events` has taken it and does not let the reader wait on.
        """
        if not self._pending:
            self._waiter = self._loop.create_future()
            try:
                if not self._pending:
                    await self._waiter
            finally:
                self._waiter = None
            if self._error is not None:
                raise self._error
        return self.take()

    def take(self) -> dict[int, TokenEvent]:
        """What was not read yet, without waiting."""
        with self._lock:
            events, self._pending, self._has_end = self._pending, {}, False
        return events

    def take_plain(self) -> dict[int, TokenEvent] | None:
        """As `take`; None, and nothing taken, if a stream's last event is among it."""
        with self._lock:
            if self._has_end:
                return None
            events, self._pending = self._pending, {}
        return events
