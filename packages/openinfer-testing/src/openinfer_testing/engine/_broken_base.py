"""Wrapper around a correct engine, the base of every broken engine."""

from collections.abc import Iterable
from concurrent.futures import Future

from openinfer_contract import (
    Command,
    CommandResult,
    EngineHandle,
    EngineInfo,
    EventSink,
    GenerateRequest,
    Load,
    Ticket,
    TokenEvent,
)


class BrokenEngine:
    """Wrapper around a correct engine that changes nothing. Each subclass changes one thing."""

    def __init__(self, engine: EngineHandle) -> None:
        self.engine = engine

    @property
    def info(self) -> EngineInfo:
        """Info of the wrapped engine."""
        return self.engine.info

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Submits the result of `change` to the wrapped engine and passes its events to `relay`."""

        def through(event: TokenEvent, /) -> None:
            self.relay(request, event, sink)

        self.engine.submit(self.change(request), through)
        return Ticket(self, request.request_id)

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Forwards the abort."""
        self.engine.abort(request_ids)

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Forwards the command."""
        return self.engine.control(command)

    def load(self) -> Load:
        """Returns the load of the wrapped engine."""
        return self.engine.load()

    def drain(self) -> "Future[None]":
        """Drains the wrapped engine."""
        return self.engine.drain()

    def close(self) -> None:
        """Closes the wrapped engine."""
        self.engine.close()

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Returns the request that the wrapped engine gets."""
        return request

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Passes an event to the sink."""
        sink(event)


class TracksLiveRequests(BrokenEngine):
    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._live: set[str] = set()

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Records the id of a live request."""
        self._live.add(request.request_id)
        return request
