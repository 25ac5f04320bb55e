"""Several event streams merged into one, without a queue."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from openinfer_contract import EventSink, MergeBuffer, TokenEvent


class EventFanIn:
    """The sinks of one HTTP request's streams, with a single reader.

    Unread events of a stream are merged, so a slow reader holds no more memory than its own output.
    Sinks may be called from any thread. `get` belongs to the event loop in which the object was
    made.
    """

    __slots__ = (
        "_error",
        "_has_end",
        "_is_waiting",
        "_lock",
        "_loop",
        "_loop_thread",
        "_pending",
        "_waiter",
        "on_events",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._pending: dict[int, MergeBuffer[TokenEvent]] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._is_waiting = False
        """Whether the reader waits and has not been woken."""
        self.on_events: Callable[[dict[int, TokenEvent]], bool] | None = None
        """Called on the event loop with new events while the reader waits, unless a stream's last
        event is among them. If it returns True, the reader continues to wait. The reader raises
        what it raises."""
        self._error: Exception | None = None
        self._has_end = False
        """Whether the last event of a stream is unread."""

    def sink(self, index: int) -> EventSink:
        """Returns the sink of stream `index`."""
        return partial(self._put, index=index) if index else self._put

    def _put(self, event: TokenEvent, /, index: int = 0) -> None:
        is_here = threading.get_ident() == self._loop_thread
        if is_here and self._is_waiting and event.end is None and not self._pending:
            # The usual case: the event goes to `on_events` without being stored.
            self._deliver({index: event})
            return
        with self._lock:
            was_empty = not self._pending
            self._store(index, event)
            if event.end is not None:
                self._has_end = True
        if was_empty:
            if is_here:
                self._wake()
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._wake)

    def _store(self, index: int, event: TokenEvent) -> None:
        buffer = self._pending.get(index)
        if buffer is None:
            buffer = self._pending[index] = MergeBuffer()
        buffer.add(event, event.num_tokens)

    def _deliver(self, events: dict[int, TokenEvent]) -> None:
        """Passes events to `on_events`; wakes the reader unless `on_events` returns True."""
        if self.on_events is None:
            for index, event in events.items():
                self._store(index, event)
        else:
            try:
                if self.on_events(events):
                    return
            except Exception as error:
                self._error = error
        self._wake_reader()

    def _wake(self) -> None:
        # A reader that was woken and has not run yet may hold earlier events.
        if not self._is_waiting:
            return
        events = None if self.on_events is None else self.take_unless_ended()
        if events is None:
            self._wake_reader()
        else:
            self._deliver(events)

    def _wake_reader(self) -> None:
        # `on_events` may have aborted a stream, and the engine may have called its sink at once
        # with the last event.
        self._is_waiting = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> dict[int, TokenEvent]:
        """Waits for events, and returns one event a stream, in order of arrival.

        The result is empty if `on_events` took the events and woke the reader.
        """
        if not self._pending:
            self._waiter, self._is_waiting = self._loop.create_future(), True
            try:
                if not self._pending:
                    await self._waiter
            finally:
                self._waiter, self._is_waiting = None, False
            if self._error is not None:
                raise self._error
        return self.take()

    def take(self) -> dict[int, TokenEvent]:
        """Returns the unread events without waiting."""
        with self._lock:
            buffers, self._pending, self._has_end = self._pending, {}, False
        return _merged(buffers)

    def take_unless_ended(self) -> dict[int, TokenEvent] | None:
        """Returns the unread events, or None if a stream's last event is among them."""
        with self._lock:
            if self._has_end:
                return None
            buffers, self._pending = self._pending, {}
        return _merged(buffers)


def _merged(buffers: dict[int, MergeBuffer[TokenEvent]]) -> dict[int, TokenEvent]:
    found = {index: buffer.merge_all() for index, buffer in buffers.items()}
    return {index: event for index, event in found.items() if event is not None}
