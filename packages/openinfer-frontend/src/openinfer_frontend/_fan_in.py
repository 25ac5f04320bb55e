"""Several streams of events read as one, without a queue: what was not read yet is merged."""

import asyncio
import threading

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
        if was_empty:
            if threading.get_ident() == self._loop_thread:
                self._wake()
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> dict[int, TokenEvent]:
        """What happened since the last read, one event a stream, in order of arrival."""
        while not self._pending:
            self._waiter = self._loop.create_future()
            try:
                if not self._pending:
                    await self._waiter
            finally:
                self._waiter = None
        with self._lock:
            events, self._pending = self._pending, {}
        return events
