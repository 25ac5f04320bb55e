"""The source of the current engine, which may die and be restarted."""

from typing import Literal, Protocol

from openinfer_contract import EngineHandle

EngineState = Literal["ready", "starting", "restarting", "dead"]


class EngineProvider(Protocol):
    """An owner of an engine. Both members are cheap and never block."""

    @property
    def state(self) -> EngineState:
        """Whether the engine can answer now."""

    def handle(self) -> EngineHandle:
        """Returns the current engine; call it again for every request.

        Raises:
            EngineDead: there is no engine now; the reason is one sentence.
        """


class FixedEngine:
    """An `EngineProvider` for one engine that is never restarted."""

    def __init__(self, engine: EngineHandle) -> None:
        self._engine = engine

    @property
    def state(self) -> EngineState:
        """Always ready: a dead engine raises at submit."""
        return "ready"

    def handle(self) -> EngineHandle:
        """Returns the engine."""
        return self._engine
