"""Engines that abort what they should not, or not what they should."""

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
from openinfer_testing.engine._broken_base import BrokenEngine, KnowsWhoIsLive


class IgnoresAborts(BrokenEngine):
    """Aborts do nothing."""

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Does nothing."""


class _OnlyAbortsWhen(BrokenEngine):
    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._has_begun: set[str] = set()

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Notes which requests have begun."""
        if event.token_ids:
            self._has_begun.add(request.request_id)
        sink(event)


class AbortsOnlyDecoding(_OnlyAbortsWhen):
    """Queued requests and prefills cannot be aborted."""

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts those that have tokens."""
        self.engine.abort([i for i in request_ids if i in self._has_begun])


class AbortsOnlyQueued(_OnlyAbortsWhen):
    """A request that has begun runs to its end."""

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts those without tokens."""
        self.engine.abort([i for i in request_ids if i not in self._has_begun])


class AbortsTheNeighbours(KnowsWhoIsLive):
    """An abort takes every live request with it."""

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Aborts all."""
        self.engine.abort(tuple(self._live))


class AnswersLateAborts(BrokenEngine):
    """An abort of an ended request makes another terminal event."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._ended: dict[str, EventSink] = {}

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Notes who has ended."""
        if event.end is not None:
            self._ended[request.request_id] = sink
        sink(event)

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Answers even those."""
        for request_id in request_ids:
            if request_id in self._ended:
                self._ended[request_id](TokenEvent(end=Finished(reason="abort")))
            else:
                self.engine.abort((request_id,))


class KeepsIds(BrokenEngine):
    """An id that was used once stays taken."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._used: set[str] = set()

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Rejects ids it has seen."""
        if request.request_id in self._used:
            duplicate = Rejected(kind="duplicate", field="request_id", message="seen before")
            sink(TokenEvent(end=duplicate))
            return Ticket(self, request.request_id)
        self._used.add(request.request_id)
        return super().submit(request, sink)


class LeaksARow(BrokenEngine):
    """After an abort a row stays in use."""

    _num_leaked = 0

    def abort(self, request_ids: Iterable[str], /) -> None:
        """Leaks one."""
        self._num_leaked += 1
        self.engine.abort(request_ids)

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Tells of the leak."""
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
