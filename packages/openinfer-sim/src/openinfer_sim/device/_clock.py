"""Time as an executor sees it: real, or a number that somebody advances."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where durations are spent. Belongs to the step thread."""

    def __call__(self) -> float:
        """Monotonic seconds."""

    def wait_until(self, due: float) -> None:
        """Returns when it is `due`; at once if that is past."""

    def spend(self, seconds: float) -> None:
        """The host works for so long; a real host needs nobody to say so."""


class VirtualClock:
    """A clock that jumps. Never goes back.

    Attributes:
        now: seconds since the simulation's start.
    """

    __slots__ = ("now",)

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Seconds since the simulation's start."""
        return self.now

    def wait_until(self, due: float) -> None:
        """Jumps."""
        if due > self.now:
            self.now = due

    def spend(self, seconds: float) -> None:
        """Jumps."""
        self.now += seconds


class RealClock:
    """`time.monotonic` and `time.sleep`."""

    __slots__ = ()

    def __call__(self) -> float:
        """`time.monotonic` seconds."""
        return time.monotonic()

    def wait_until(self, due: float) -> None:
        """Sleeps."""
        delay = due - time.monotonic()
        if delay > 0:
            time.sleep(delay)

    def spend(self, seconds: float) -> None:
        """Nothing: the loop's own work takes its own time."""
