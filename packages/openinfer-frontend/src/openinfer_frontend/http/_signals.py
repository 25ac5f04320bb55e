"""SIGINT and SIGTERM: repetitions within a moment count as one signal."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SAME_SIGNAL_S = 0.5
"""A signal that arrives within this time after the first one is a repetition of it.

A signal to a process group arrives a second time from a parent that forwards it, such as `uv run`.
No user presses Ctrl-C twice as fast.
"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], Any] | int | None


class ShutdownSignals:
    """The first signal of a shutdown, and the test for its repetitions. Main thread only."""

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._before: dict[int, Handler] = {}

    def begin(self, at: float) -> None:
        """Records the start of the shutdown, by a signal or without one, from `time.monotonic`."""
        self._first_at = at

    def is_new_signal(self, at: float) -> bool:
        """Returns whether a signal at this time is not a repetition of the first one."""
        return self._first_at is None or at - self._first_at >= SAME_SIGNAL_S

    @contextmanager
    def ignoring_repetitions(self) -> Iterator[None]:
        """Ignores repetitions of the first signal after the block, which handles signals itself.

        A repetition would otherwise kill the program while it cleans up. A new signal has its
        previous effect.
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
                continue  # the program has set its own handler meanwhile
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
