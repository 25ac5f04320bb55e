"""Polling of the event loop, to keep its core awake."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Polling:
    """Keeps the event loop polling for a while after each `touch`.

    A sleeping core wakes slowly and then runs slowly. But a polling loop takes the GIL again and
    again, which slows down other threads. The loop therefore polls only while no thread has work.
    The object belongs to the event loop on which it is first used.

    Args:
        duration_s: seconds of polling after a touch; 0 never polls.
    """

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._until = 0.0
        self._is_on = False
        self._num_threads = 0

    def touch(self) -> None:
        """Starts or prolongs polling, because an event is expected soon."""
        if self._duration_s:
            loop = asyncio.get_running_loop()
            self._until = loop.time() + self._duration_s
            self._start(loop)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses polling inside the block, while a thread has work."""
        self._num_threads += 1
        try:
            yield
        finally:
            self._num_threads -= 1
            if self._until:
                self._start(asyncio.get_running_loop())

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_on:
            self._is_on = True
            self._poll(loop)

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        # A loop with a pending callback asks for events without waiting for them.
        if self._num_threads == 0 and loop.time() < self._until:
            loop.call_soon(self._poll, loop)
        else:
            self._is_on = False
