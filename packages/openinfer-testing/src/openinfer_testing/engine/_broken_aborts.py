"""Engines that abort the wrong requests, or none."""

from collections.abc import Iterable
from concurrent.futures import Future

from msgspec.structs import replace

from openinfer_contract import (
    Command,
    CommandDone,
    CommandResult,
    EngineHandle,
    EventSink,
    Finished,
    GenerateRequest,
    GetLoad,
    Rejected,
    Ticket,
    TokenEvent,
)
from openinfer_testing.engine._broken_base import BrokenEngine, TracksLiveRequests


class IgnoresAborts(BrokenEngine):
    """Ignores every abort."""

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Does nothing."""


class _TracksFirstTokens(BrokenEngine):
    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._has_begun: set[str] = set()

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Records which requests have sent tokens."""
        if event.token_ids:
            self._has_begun.add(request.request_id)
        sink(event)


class AbortsOnlyDecoding(_TracksFirstTokens):
    """Does not abort queued requests and prefills."""

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts only requests that have sent tokens."""
        self.engine.abort([i for i in request_ids if i in self._has_begun])


class AbortsOnlyQueued(_TracksFirstTokens):
    """Does not abort a request that has begun to decode."""

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts only requests that have sent no token."""
        self.engine.abort([i for i in request_ids if i not in self._has_begun])


class AbortsTheNeighbours(TracksLiveRequests):
    """Aborts every live request when one is aborted."""

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts all requests."""
        self.engine.abort(tuple(self._live))


class EndsFinishedRequestsAgain(BrokenEngine):
    """Sends a second terminal event when an ended request is aborted."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._ended: dict[str, EventSink] = {}

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Records the sinks of ended requests."""
        if event.end is not None:
            self._ended[request.request_id] = sink
        sink(event)

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Sends another terminal event to ended requests."""
        for request_id in request_ids:
            if request_id in self._ended:
                self._ended[request_id](TokenEvent(end=Finished(reason="abort")))
            else:
                self.engine.abort((request_id,))


class KeepsIds(BrokenEngine):
    """Keeps the id of an ended request in use."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._used: set[str] = set()

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Rejects an id that was used before."""
        if request.request_id in self._used:
            duplicate = Rejected(kind="duplicate", field="request_id", message="seen before")
            sink(TokenEvent(end=duplicate))
            return Ticket(self, request.request_id)
        self._used.add(request.request_id)
        return super().submit(request, sink)


class LeaksASlot(BrokenEngine):
    """Keeps a slot in use after each abort."""

    _num_leaked = 0

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Leaks one slot."""
        self._num_leaked += 1
        self.engine.abort(request_ids)

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Adds the leaked slots to the load."""
        future = self.engine.control(command)
        if not isinstance(command, GetLoad) or not self._num_leaked:
            return future
        leaked: Future[CommandResult] = Future()

        def add(done: "Future[CommandResult]") -> None:
            result = done.result()
            assert isinstance(result, CommandDone)
            assert result.load is not None
            load = replace(result.load, num_slots=result.load.num_slots + self._num_leaked)
            leaked.set_result(replace(result, load=load))

        future.add_done_callback(add)
        return leaked
