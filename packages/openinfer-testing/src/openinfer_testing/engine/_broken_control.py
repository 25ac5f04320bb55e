"""Engines that break rules of commands, draining and death."""

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
from openinfer_testing.engine._broken_base import BrokenEngine, TracksLiveRequests


class DrainsAtOnce(BrokenEngine):
    """Reports that it has drained while requests are live."""

    def drain(self) -> "Future[None]":
        """Returns a completed future."""
        self.engine.drain()
        future: Future[None] = Future()
        future.set_result(None)
        return future


class DrainsByAborting(TracksLiveRequests):
    """Drains by aborting the live requests instead of finishing them."""

    def drain(self) -> "Future[None]":
        """Aborts the live requests, then drains."""
        self.engine.abort(tuple(self._live))
        return self.engine.drain()


class AdmitsWhileDraining(BrokenEngine):
    """Accepts new requests while draining."""

    _is_draining = False

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Ends a new request normally, although the engine drains."""
        if self._is_draining:
            sink(TokenEvent(end=Finished(reason="length")))
            return Ticket(self, request.request_id)
        return super().submit(request, sink)

    def drain(self) -> "Future[None]":
        """Records that the engine drains."""
        self._is_draining = True
        return self.engine.drain()


class DiesSilently(BrokenEngine):
    """Sends no terminal event to live requests when it dies."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Drops events that report a failure."""
        if not isinstance(event.end, Failed):
            sink(event)


class TakesRequestsWhenDead(BrokenEngine):
    """Accepts requests after its death and never ends them."""

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        """Suppresses `EngineDead`."""
        try:
            return super().submit(request, sink)
        except EngineDead:
            return Ticket(self, request.request_id)


class IsNeverRetryable(BrokenEngine):
    """Reports every failure as not retryable."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Clears `is_retryable`."""
        if isinstance(event.end, Failed):
            event = replace(event, end=replace(event.end, is_retryable=False))
        sink(event)


class ClosesOnFailedStep(BrokenEngine):
    """Closes the whole engine when a step or a row fails."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Closes the engine after a failure."""
        sink(event)
        if isinstance(event.end, Failed):
            self.engine.close()


class FailsTheNeighbours(TracksLiveRequests):
    """Aborts all other requests when one row fails."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Aborts every live request after a failure."""
        sink(event)
        if isinstance(event.end, Failed):
            self.engine.abort(tuple(self._live))


class IgnoresPause(BrokenEngine):
    """Reports that it is paused, but keeps running steps."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Reports success for pause and resume, without effect."""
        if isinstance(command, Pause | Resume):
            return _answered(CommandDone())
        return self.engine.control(command)


class PausesAtOnce(BrokenEngine):
    """Freezes live requests where it should finish or abort them first."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Replaces every pause mode by `keep`."""
        return self.engine.control(Pause(mode="keep") if isinstance(command, Pause) else command)


class IgnoresReset(BrokenEngine):
    """Keeps its prefix cache when told to reset it."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Reports success for a reset, without effect."""
        if isinstance(command, ResetPrefixCache):
            return _answered(CommandDone())
        return self.engine.control(command)


class AcceptsUnknownCommands(BrokenEngine):
    """Reports success for commands that it does not support."""

    def control(self, command: Command, /) -> "Future[CommandResult]":
        """Reports success for every other command."""
        if isinstance(command, GetLoad | Pause | Resume | ResetPrefixCache):
            return self.engine.control(command)
        return _answered(CommandDone())


class ReportsNoLoad(BrokenEngine):
    """Always reports an empty load."""

    def load(self) -> Load:
        """Returns an empty load."""
        return Load()


class ClosesQuietly(BrokenEngine):
    """Keeps running after `close`."""

    def close(self) -> None:
        """Does nothing."""


def _answered(result: CommandResult) -> "Future[CommandResult]":
    future: Future[CommandResult] = Future()
    future.set_result(result)
    return future
