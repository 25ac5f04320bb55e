"""Reading a loop's load: only after something happened, and at most four times a second."""

from openinfer_contract import Load
from openinfer_engine.loop._engine_loop import EngineLoop

LOAD_INTERVAL_S = 0.25


class LoadMeter:
    """The latest load of a loop, read at most once per `LOAD_INTERVAL_S` and only after a change.

    Attributes:
        latest: the load as last read.
        is_stale: set by the owner when the loop has done something since.
    """

    def __init__(self, loop: EngineLoop, now: float) -> None:
        self.latest = loop.load()
        self.is_stale = False
        self._loop = loop
        self._read_at = now

    def wait_s(self, now: float) -> float | None:
        """Returns the seconds until `poll` reads the load again; None if nothing has happened."""
        return max(0.0, self._read_at + LOAD_INTERVAL_S - now) if self.is_stale else None

    def poll(self, now: float) -> Load | None:
        """Returns the load if it was due and has changed, otherwise None."""
        # Clients add spans to a trace once a load report says that one is running, so a trace's
        # start is reported at once.
        is_due = self._loop.is_tracing != self.latest.is_tracing
        if not is_due and (not self.is_stale or now - self._read_at < LOAD_INTERVAL_S):
            return None
        self.is_stale = False
        self._read_at = now
        load = self._loop.load()
        if load == self.latest:
            return None
        self.latest = load
        return load
