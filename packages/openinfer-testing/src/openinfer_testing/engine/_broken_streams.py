"""Engines with broken streams."""

import asyncio

from msgspec.structs import replace

from openinfer_contract import (
    EngineHandle,
    EventSink,
    Finished,
    GenerateRequest,
    Rejected,
    Scheduled,
    TokenEvent,
    pack_ids,
)
from openinfer_testing.engine._broken_base import BrokenEngine


class DropsTerminal(BrokenEngine):
    """Streams stop without an end."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Keeps the end to itself."""
        if event.end is None or isinstance(event.end, Rejected):
            sink(event)
        elif event.token_ids:
            sink(replace(event, end=None))


class RepeatsTerminal(BrokenEngine):
    """Streams end twice."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Says the end again."""
        sink(event)
        if event.end is not None:
            sink(TokenEvent(end=event.end))


class SpeaksAfterTheEnd(BrokenEngine):
    """Tokens follow the end."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Delivers the tokens of the last event after its end."""
        sink(event)
        if event.end is not None:
            sink(TokenEvent(token_ids=pack_ids([1])))


class SchedulesTwice(BrokenEngine):
    """Scheduled is repeated, as if after a preemption."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Adds Scheduled to every event with tokens."""
        is_bare = event.token_ids and event.scheduled is None
        sink(replace(event, scheduled=Scheduled(num_prompt_tokens=3)) if is_bare else event)


class LosesTokens(BrokenEngine):
    """The tokens of every third event are lost."""

    _num_events = 0

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Empties every third event."""
        self._num_events += 1
        if self._num_events % 3 == 0 and not event.scheduled:
            event = replace(event, token_ids=b"")
        if event.end or event.scheduled or event.token_ids:
            sink(event)


class HidesPreemptions(BrokenEngine):
    """Nobody learns why a stream paused."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Counts none at the end."""
        if isinstance(event.end, Finished):
            event = replace(event, end=replace(event.end, num_preemptions=0))
        sink(event)


class CountsOnlyNewOutput(BrokenEngine):
    """Output that a request brought along is missing from the counts."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Subtracts it."""
        if isinstance(event.end, Finished):
            num = event.end.num_output_tokens - request.num_output_prefix
            event = replace(event, end=replace(event.end, num_output_tokens=num))
        sink(event)


class HidesStopToken(BrokenEngine):
    """The stop id is not delivered."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Cuts the last id of a stopped stream off."""
        is_stop = isinstance(event.end, Finished) and event.end.reason == "stop"
        sink(replace(event, token_ids=event.token_ids[:-4]) if is_stop else event)


class MixesStreams(BrokenEngine):
    """With several streams live, one gets the tokens of another."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._last: dict[str, bytes] = {}

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Swaps tokens with whoever else is live."""
        others = [tokens for name, tokens in self._last.items() if name != request.request_id]
        same = [tokens for tokens in others if len(tokens) == len(event.token_ids)]
        self._last[request.request_id] = event.token_ids
        if event.end is not None:
            del self._last[request.request_id]
        sink(replace(event, token_ids=same[0]) if same else event)


class DropsLongPromptChunks(BrokenEngine):
    """Of a long prompt only the last part is read."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Cuts the prompt."""
        return replace(request, prompt_token_ids=request.prompt_token_ids[-4 * 256 :])


class StallsOnSlowReader(BrokenEngine):
    """While one reader does not read, nobody gets anything."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._loop = asyncio.get_running_loop()
        self._sinks: set[EventSink] = set()

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Holds the event back until all read."""
        self._sinks.add(sink)
        self._loop.call_soon_threadsafe(self._deliver, event, sink)

    def _deliver(self, event: TokenEvent, sink: EventSink) -> None:
        is_stalled = any(not getattr(one, "is_reading", True) for one in self._sinks)
        if is_stalled and getattr(sink, "is_reading", True):
            self._loop.call_later(0.01, self._deliver, event, sink)
        else:
            sink(event)


class ForgetsTheSlowReader(BrokenEngine):
    """Only the newest event waits for a slow reader; older ones are dropped."""

    _num_dropped = 0

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Drops most of what an unread stream should hold."""
        is_unread = not getattr(sink, "is_reading", True)
        if is_unread and event.end is None and event.scheduled is None:
            self._num_dropped += 1
            return
        sink(event)


class ForgetsOutputPrefix(BrokenEngine):
    """Resumed output counts as prompt."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Drops the field."""
        return replace(request, num_output_prefix=0)


class IgnoresSeeds(BrokenEngine):
    """A seed is taken and not used."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Replaces the seed by one seed for all."""
        seed = 0 if request.sampling.seed is not None else None
        return replace(request, sampling=replace(request.sampling, seed=seed))


class SeedsByPromptLength(BrokenEngine):
    """Draws depend on how long the prompt is, not on the position alone."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Mixes the length into the seed."""
        seed = request.sampling.seed
        if seed is None:
            return request
        mixed = seed + 977 * request.num_prompt_tokens
        return replace(request, sampling=replace(request.sampling, seed=mixed))


class LosesLogprobs(BrokenEngine):
    """Tokens come without the logprobs that were asked for."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Drops them from all but the first event."""
        sink(event if event.scheduled else replace(event, logprobs=None))


class IgnoresDeadlines(BrokenEngine):
    """A request runs on after its deadline."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Forgets it."""
        return replace(request, deadline=None)
