"""A good engine behind a wrapper: what every broken engine is made from."""

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
    """A good engine behind a wrapper that changes nothing; subclasses change one thing."""

    def __init__(self, engine: EngineHandle) -> None:
        self.engine = engine

    @property
    def info(self) -> EngineInfo:
        """As the good engine."""
        return self.engine.info

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """As the good engine, by way of `change` and `relay`."""

        def through(event: TokenEvent, /) -> None:
            self.relay(request, event, sink)

        self.engine.submit(self.change(request), through)
        return Ticket(self, request.request_id)

    def abort(self, request_ids: Iterable[str], /) -> None:
        """As the good engine."""
        self.engine.abort(request_ids)

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """As the good engine."""
        return self.engine.control(command)

    def load(self) -> Load:
        """As the good engine."""
        return self.engine.load()

    def drain(self) -> "Future[None]":
        """As the good engine."""
        return self.engine.drain()

    def close(self) -> None:
        """As the good engine."""
        self.engine.close()

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """The request that the good engine gets."""
        return request

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Passes an event on."""
        sink(event)


class KnowsWhoIsLive(BrokenEngine):
    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._live: set[str] = set()

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Notes who is live."""
        self._live.add(request.request_id)
        return request
