"""The sinks of live requests, and the delivery of events to them."""

from collections.abc import Iterable

from openinfer_contract import EventSink, Failed, TokenEvent
from openinfer_engine.loop._grammar_queue import GrammarQueue
from openinfer_engine.trace._trace_control import TraceControl


class EventSinks:
    """The sinks of live requests, by request id. Used by the step thread.

    Args:
        grammars: drops the constraint of a request that has ended; None if grammars are not
            supported.
        traces: records when a request ends.
    """

    def __init__(self, grammars: GrammarQueue | None, traces: TraceControl) -> None:
        self._grammars = grammars
        self._traces = traces
        self._sinks: dict[str, EventSink] = {}

    def __len__(self) -> int:
        return len(self._sinks)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sinks

    def open(self, request_id: str, sink: EventSink) -> None:
        """Registers the sink of a new live request."""
        self._sinks[request_id] = sink

    def deliver(self, events: Iterable[tuple[str, TokenEvent]]) -> None:
        """Passes events to their sinks, and removes each request's sink after its last event."""
        sinks = self._sinks
        for request_id, event in events:
            if event.end is None:
                sinks[request_id](event)
            else:
                self.finish(request_id, event)

    def finish(self, request_id: str, event: TokenEvent) -> None:
        """Passes a request's last event to its sink and removes the sink."""
        if self._grammars is not None:
            self._grammars.drop(request_id)
        self._traces.steps.ended(request_id, event)
        self._sinks.pop(request_id)(event)

    def fail_all(self, reason: str) -> None:
        """Fails all live requests, retryably."""
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink(TokenEvent(end=Failed(message=reason, is_retryable=True)))
