"""Engines that break commands, draining and death."""

from concurrent.futures import Future

from msgspec.structs import replace

from openinfer_contract import (
    Command,
    CommandDone,
    CommandResult,
    EngineDead,
    EventSink,
    Failed,
    Finished,
    GenerateRequest,
    GetLoad,
    Load,
    Pause,
    ResetPrefixCache,
    Resume,
    Ticket,
    TokenEvent,
)
from openinfer_testing.engine._broken_base import BrokenEngine, KnowsWhoIsLive


class DrainsAtOnce(BrokenEngine):
    """Drained is said while requests are live."""

    def drain(self) -> "Future[None]":
        """Does not wait."""
        self.engine.drain()
        future: Future[None] = Future()
        future.set_result(None)
        return future


class DrainsByAborting(KnowsWhoIsLive):
    """Draining ends the live requests instead of finishing them."""

    def drain(self) -> "Future[None]":
        """Aborts first."""
        self.engine.abort(tuple(self._live))
        return self.engine.drain()


class AdmitsWhileDraining(BrokenEngine):
    """A draining engine takes new requests."""

    _is_draining = False

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Serves what it should refuse."""
        if self._is_draining:
            sink(TokenEvent(end=Finished(reason="length")))
            return Ticket(self, request.request_id)
        return super().submit(request, sink)

    def drain(self) -> "Future[None]":
        """Notes it, no more."""
        self._is_draining = True
        return self.engine.drain()


class DiesSilently(BrokenEngine):
    """A dead engine leaves its live requests without an end."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Hides failures."""
        if not isinstance(event.end, Failed):
            sink(event)


class TakesRequestsWhenDead(BrokenEngine):
    """A dead engine takes requests that nobody will ever answer."""

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Pretends."""
        try:
            return super().submit(request, sink)
        except EngineDead:
            return Ticket(self, request.request_id)


class IsNeverRetryable(BrokenEngine):
    """A death is told as if the request were at fault."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Says that no other engine could help."""
        if isinstance(event.end, Failed):
            event = replace(event, end=replace(event.end, is_retryable=False))
        sink(event)


class DiesOfAFailedStep(BrokenEngine):
    """A failed step, or row, takes the engine with it."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Closes the engine."""
        sink(event)
        if isinstance(event.end, Failed):
            self.engine.close()


class FailsTheNeighbours(KnowsWhoIsLive):
    """When one row fails the others are aborted."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Aborts them."""
        sink(event)
        if isinstance(event.end, Failed):
            self.engine.abort(tuple(self._live))


class IgnoresPause(BrokenEngine):
    """Says it is paused and steps on."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Does nothing."""
        if isinstance(command, Pause | Resume):
            return _answered(CommandDone())
        return self.engine.control(command)


class PausesAtOnce(BrokenEngine):
    """Freezes where it should finish or abort first."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Knows one mode."""
        return self.engine.control(Pause(mode="keep") if isinstance(command, Pause) else command)


class IgnoresReset(BrokenEngine):
    """Says the cache is reset and keeps it."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Does nothing."""
        if isinstance(command, ResetPrefixCache):
            return _answered(CommandDone())
        return self.engine.control(command)


class ObeysAnything(BrokenEngine):
    """Says done to commands it does not know."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Nods."""
        if isinstance(command, GetLoad | Pause | Resume | ResetPrefixCache):
            return self.engine.control(command)
        return _answered(CommandDone())


class ReportsNoLoad(BrokenEngine):
    """The load is always empty."""

    def load(self) -> Load:
        """Empty."""
        return Load()


class ClosesQuietly(BrokenEngine):
    """Close leaves the engine running."""

    def close(self) -> None:
        """Does nothing."""


def _answered(result: CommandResult) -> "Future[CommandResult]":
    future: Future[CommandResult] = Future()
    future.set_result(result)
    return future
