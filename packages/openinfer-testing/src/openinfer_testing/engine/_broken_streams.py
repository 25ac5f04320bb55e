"""Engines that break rules of streams."""

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
    """Stops streams without a terminal event."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Drops the end of every event."""
        if event.end is None or isinstance(event.end, Rejected):
            sink(event)
        elif event.token_ids:
            sink(replace(event, end=None))


class RepeatsTerminal(BrokenEngine):
    """Ends streams twice."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Sends the end a second time."""
        sink(event)
        if event.end is not None:
            sink(TokenEvent(end=event.end))


class SendsTokensAfterTheEnd(BrokenEngine):
    """Sends tokens after the terminal event."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Sends one token after the end."""
        sink(event)
        if event.end is not None:
            sink(TokenEvent(token_ids=pack_ids([1])))


class SchedulesTwice(BrokenEngine):
    """Repeats `Scheduled`, as if after a preemption."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Adds `Scheduled` to every event with tokens."""
        is_bare = event.token_ids and event.scheduled is None
        sink(replace(event, scheduled=Scheduled(num_prompt_tokens=3)) if is_bare else event)


class LosesTokens(BrokenEngine):
    """Loses the tokens of every third event."""

    _num_events = 0

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Empties every third event."""
        self._num_events += 1
        if self._num_events % 3 == 0 and not event.scheduled:
            event = replace(event, token_ids=b"")
        if event.end or event.scheduled or event.token_ids:
            sink(event)


class HidesPreemptions(BrokenEngine):
    """Reports no preemptions at the end."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Sets `num_preemptions` to 0."""
        if isinstance(event.end, Finished):
            event = replace(event, end=replace(event.end, num_preemptions=0))
        sink(event)


class CountsOnlyNewOutput(BrokenEngine):
    """Leaves resumed output tokens out of the final counts."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Subtracts `num_output_prefix`."""
        if isinstance(event.end, Finished):
            num = event.end.num_output_tokens - request.num_output_prefix
            event = replace(event, end=replace(event.end, num_output_tokens=num))
        sink(event)


class HidesStopToken(BrokenEngine):
    """Does not deliver the stop token."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Removes the last id of a stopped stream."""
        is_stop = isinstance(event.end, Finished) and event.end.reason == "stop"
        sink(replace(event, token_ids=event.token_ids[:-4]) if is_stop else event)


class MixesStreams(BrokenEngine):
    """Delivers the tokens of one live stream to another."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._last: dict[str, bytes] = {}

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Replaces tokens by those of another live request."""
        others = [tokens for name, tokens in self._last.items() if name != request.request_id]
        same = [tokens for tokens in others if len(tokens) == len(event.token_ids)]
        self._last[request.request_id] = event.token_ids
        if event.end is not None:
            del self._last[request.request_id]
        sink(replace(event, token_ids=same[0]) if same else event)


class DropsLongPromptChunks(BrokenEngine):
    """Reads only the last 256 tokens of a long prompt."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Truncates the prompt."""
        return replace(request, prompt_token_ids=request.prompt_token_ids[-4 * 256 :])


class StallsOnSlowReader(BrokenEngine):
    """Delivers nothing to any reader while one reader has stopped."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._loop = asyncio.get_running_loop()
        self._sinks: set[EventSink] = set()

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Holds the event back until every reader reads."""
        self._sinks.add(sink)
        self._loop.call_soon_threadsafe(self._deliver, event, sink)

    def _deliver(self, event: TokenEvent, sink: EventSink) -> None:
        is_stalled = any(not getattr(one, "is_reading", True) for one in self._sinks)
        if is_stalled and getattr(sink, "is_reading", True):
            self._loop.call_later(0.01, self._deliver, event, sink)
        else:
            sink(event)


class DropsUnreadEvents(BrokenEngine):
    """Drops the events of a reader that has stopped, except the first and the last one."""

    _num_dropped = 0

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Drops events between `Scheduled` and the end while the stream is unread."""
        is_unread = not getattr(sink, "is_reading", True)
        if is_unread and event.end is None and event.scheduled is None:
            self._num_dropped += 1
            return
        sink(event)


class ForgetsOutputPrefix(BrokenEngine):
    """Counts resumed output tokens as prompt tokens."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Drops `num_output_prefix`."""
        return replace(request, num_output_prefix=0)


class IgnoresSeeds(BrokenEngine):
    """Accepts a seed and does not use it."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Replaces every seed by 0."""
        seed = 0 if request.sampling.seed is not None else None
        return replace(request, sampling=replace(request.sampling, seed=seed))


class SeedsByPromptLength(BrokenEngine):
    """Makes draws depend on the length of the prompt."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Mixes the length into the seed."""
        seed = request.sampling.seed
        if seed is None:
            return request
        mixed = seed + 977 * request.num_prompt_tokens
        return replace(request, sampling=replace(request.sampling, seed=mixed))


class LosesLogprobs(BrokenEngine):
    """Delivers tokens without the requested logprobs."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Drops the logprobs of all events but the first."""
        sink(event if event.scheduled else replace(event, logprobs=None))


class IgnoresDeadlines(BrokenEngine):
    """Continues a request after its deadline."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Drops the deadline."""
        return replace(request, deadline=None)
