"""Clocks of the modelled device: virtual or real."""

import time
from typing import Protocol


class Clock(Protocol):
    """Clock of one executor and its engine loop. Used by the step thread only."""

    def __call__(self) -> float:
        """Returns monotonic seconds."""

    def wait_until(self, due: float) -> None:
        """Waits until `due`. Returns at once if `due` has passed."""

    def spend(self, seconds: float) -> None:
        """Adds the modelled time of host work. A real clock does nothing."""


class VirtualClock:
    """Clock that jumps forward and never goes back.

    Attributes:
        now: Seconds since the start of the simulation.
    """

    __slots__ = ("now",)

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Returns the seconds since the start of the simulation."""
        return self.now

    def wait_until(self, due: float) -> None:
        """Jumps to `due`."""
        if due > self.now:
            self.now = due

    def spend(self, seconds: float) -> None:
        """Jumps forward by `seconds`."""
        self.now += seconds


class RealClock:
    """The host's monotonic clock."""

    __slots__ = ()

    def __call__(self) -> float:
        """Returns `time.monotonic()`."""
        return time.monotonic()

    def wait_until(self, due: float) -> None:
        """Sleeps until `due`."""
        delay = due - time.monotonic()
        if delay > 0:
            time.sleep(delay)

    def spend(self, seconds: float) -> None:
        """Does nothing: the host's work takes real time already."""
