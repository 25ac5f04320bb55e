"""An event loop that polls for a moment instead of going to sleep."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Polling:
    """Keeps the event loop that it is first used on awake, for so long after the last `touch`.

    A core that sleeps is slow to wake, and slow once awake. But a loop that polls asks for the
    interpreter again and again, which would slow down a thread that has work: it polls only while
    none does. Belongs to its event loop.

    Args:
        duration_s: of polling; 0: it never does.
    """

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._until = 0.0
        self._is_on = False
        self._num_threads = 0

    def touch(self) -> None:
        """Something is expected soon."""
        if self._duration_s:
            loop = asyncio.get_running_loop()
            self._until = loop.time() + self._duration_s
            self._start(loop)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While inside, a thread has work."""
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
            self._turn(loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        # A loop with something to call asks for events without waiting for them.
        if self._num_threads == 0 and loop.time() < self._until:
            loop.call_soon(self._turn, loop)
        else:
            self._is_on = False
