"""When to look at the load: after something happened, and a few times a second at most."""

from openinfer_contract import Load
from openinfer_engine.loop._engine_loop import EngineLoop

LOAD_INTERVAL_S = 0.25


class LoadMeter:
    """The latest load of a loop, read rarely enough to cost nothing.

    Attributes:
        latest: the load as last read.
        is_stale: whether something has happened since.
    """

    def __init__(self, loop: EngineLoop, now: float) -> None:
        self.latest = loop.load()
        self.is_stale = False
        self._loop = loop
        self._read_at = now

    def wait_s(self, now: float) -> float | None:
        """Seconds until `poll` will look again, None if nothing has happened."""
        return max(0.0, self._read_at + LOAD_INTERVAL_S - now) if self.is_stale else None

    def poll(self, now: float) -> Load | None:
        """The load if it was time to look and it has changed."""
        # Clients that are to add to a trace have to know of it before they are told that it runs.
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
