"""Where the front end finds its engine: one that may die and come back."""

from typing import Literal, Protocol

from openinfer_contract import EngineHandle

EngineState = Literal["ready", "starting", "restarting", "dead"]


class EngineProvider(Protocol):
    """Whoever keeps an engine alive. Both members are cheap and never block."""

    @property
    def state(self) -> EngineState:
        """Whether the engine can answer now."""

    def handle(self) -> EngineHandle:
        """The engine of this moment; ask again for every request.

        Raises:
            EngineDead: if there is none now, with one sentence that says why.
        """


class FixedEngine:
    """An `EngineProvider` of one engine that nobody restarts."""

    def __init__(self, engine: EngineHandle) -> None:
        self._engine = engine

    @property
    def state(self) -> EngineState:
        """Always ready: a dead engine says so itself, at submit."""
        return "ready"

    def handle(self) -> EngineHandle:
        """The engine."""
        return self._engine
