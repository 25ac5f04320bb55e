"""Where the events of requests go."""

from collections.abc import Iterable

from openinfer_contract import EventSink, Failed, TokenEvent
from openinfer_engine.loop._grammar_queue import GrammarQueue
from openinfer_engine.trace._trace_control import TraceControl


class EventSinks:
    """The sinks of live requests by id. For the step thread.

    Args:
        grammars: forget a request that has ended; None where no request may have one.
        traces: told of it too.
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
        """A request is live from now on."""
        self._sinks[request_id] = sink

    def deliver(self, events: Iterable[tuple[str, TokenEvent]]) -> None:
        """Tells the sinks; those that hear how their request ends hear nothing more."""
        sinks = self._sinks
        for request_id, event in events:
            if event.end is None:
                sinks[request_id](event)
            else:
                self.finish(request_id, event)

    def finish(self, request_id: str, event: TokenEvent) -> None:
        """Tells one sink how its request has ended."""
        if self._grammars is not None:
            self._grammars.drop(request_id)
        self._traces.steps.ended(request_id, event)
        self._sinks.pop(request_id)(event)

    def fail_all(self, reason: str) -> None:
        """Tells all that the engine is gone."""
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink(TokenEvent(end=Failed(message=reason, is_retryable=True)))
