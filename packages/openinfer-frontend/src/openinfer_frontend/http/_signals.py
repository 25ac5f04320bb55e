"""SIGINT and SIGTERM of a server: several at once are one."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SAME_SIGNAL_S = 0.5
"""What comes so soon after the first signal is the same one.

A signal to a group of processes arrives again from a parent that passes it on, such as `uv run`;
nobody who wants to hurry is as fast.
"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], Any] | int | None


class ShutdownSignals:
    """Tells another signal from the first one; of the main thread."""

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._before: dict[int, Handler] = {}

    def begin(self, at: float) -> None:
        """The end begins, by a signal or without one, at this time of `time.monotonic`."""
        self._first_at = at

    def is_new_signal(self, at: float) -> bool:
        """Whether a signal of this time is another one than what began the end."""
        return self._first_at is None or at - self._first_at >= SAME_SIGNAL_S

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Behind the block, which handles signals itself, the rest of the first one does nothing.

        Whoever cleans up there would be killed by it. Any other signal does what it did before.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            if self.is_new_signal(time.monotonic()):
                self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_new_signal(time.monotonic()):
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) != self._on_signal:
                continue  # the program has set another one meanwhile
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
