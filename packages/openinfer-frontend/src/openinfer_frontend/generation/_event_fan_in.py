"""Several streams of events read as one, without a queue: what was not read yet is merged."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from openinfer_contract import EventSink, MergeBuffer, TokenEvent


class EventFanIn:
    """Sinks for the streams of one HTTP request, and one reader.

    What is pending of a stream is merged, so a reader that is slow costs its own output and no
    more. Sinks may be called from any thread;
    `get` belongs to the event loop the object was made in.
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
        """Whether the reader waits and was not woken yet."""
        self.on_events: Callable[[dict[int, TokenEvent]], bool] | None = None
        """Called on the event loop with what has come while the reader waits, unless a stream's
        last event is among it. True lets the reader wait on. What it raises, the reader does."""
        self._error: Exception | None = None
        self._has_end = False
        """Whether a stream's last event is pending."""

    def sink(self, index: int) -> EventSink:
        """The sink of stream `index`."""
        return partial(self._put, index=index) if index else self._put

    def _put(self, event: TokenEvent, /, index: int = 0) -> None:
        is_here = threading.get_ident() == self._loop_thread
        if is_here and self._is_waiting and event.end is None and not self._pending:
            # The usual case: nothing is kept, nobody else is asked.
            self._deliver({index: event})
            return
        with self._lock:
            was_empty = not self._pending
            self._keep(index, event)
            if event.end is not None:
                self._has_end = True
        if was_empty:
            if is_here:
                self._wake()
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._wake)

    def _keep(self, index: int, event: TokenEvent) -> None:
        buffer = self._pending.get(index)
        if buffer is None:
            buffer = self._pending[index] = MergeBuffer()
        buffer.add(event, event.num_tokens)

    def _deliver(self, events: dict[int, TokenEvent]) -> None:
        """Hands events to who listens; else, or where that is asked for, wakes the reader."""
        if self.on_events is None:
            for index, event in events.items():
                self._keep(index, event)
        else:
            try:
                if self.on_events(events):
                    return
            except Exception as error:
                self._error = error
        self._wake_reader()

    def _wake(self) -> None:
        # Between its waking and its running the reader may hold events that come first.
        if not self._is_waiting:
            return
        events = None if self.on_events is None else self.take_unless_ended()
        if events is None:
            self._wake_reader()
        else:
            self._deliver(events)

    def _wake_reader(self) -> None:
        # What was called may have ended a stream, and an engine may say so at once, by a sink.
        self._is_waiting = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> dict[int, TokenEvent]:
        """What happened since the last read, one event a stream, in order of arrival.

        Empty if `on_events` has taken it and does not let the reader wait on.
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
        """What was not read yet, without waiting."""
        with self._lock:
            buffers, self._pending, self._has_end = self._pending, {}, False
        return _merged(buffers)

    def take_unless_ended(self) -> dict[int, TokenEvent] | None:
        """As `take`; None, and nothing taken, if a stream's last event is among it."""
        with self._lock:
            if self._has_end:
                return None
            buffers, self._pending = self._pending, {}
        return _merged(buffers)


def _merged(buffers: dict[int, MergeBuffer[TokenEvent]]) -> dict[int, TokenEvent]:
    found = {index: buffer.merge_all() for index, buffer in buffers.items()}
    return {index: event for index, event in found.items() if event is not None}
