"""Engines that accept requests which they cannot honour."""

import asyncio

from msgspec.structs import replace

from openinfer_contract import (
    Adapter,
    EngineHandle,
    EventSink,
    GenerateRequest,
    Rejected,
    Sampling,
    TokenEvent,
    pack_ids,
    unpack_ids,
)
from openinfer_testing.engine._broken_base import BrokenEngine


class ReplacesInvalidValues(BrokenEngine):
    """Replaces invalid values by defaults instead of rejecting them."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Replaces the sampling options."""
        return replace(request, sampling=Sampling(temperature=0.0))


class ClampsIds(BrokenEngine):
    """Replaces ids outside the vocabulary by the last id."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Clamps the prompt's ids."""
        ids = [min(i, self.info.vocab_size - 1) for i in unpack_ids(request.prompt_token_ids)]
        return replace(request, prompt_token_ids=pack_ids(ids))


class DropsUnsupportedFields(BrokenEngine):
    """Drops fields that it does not honour instead of rejecting the request."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Drops the fields."""
        adapter: Adapter | None = None
        return replace(request, want=(), adapter=adapter, dp_rank=None, kv_transfer=None)


class CutsLongPrompts(BrokenEngine):
    """Truncates a prompt that does not fit."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Keeps the end of the prompt."""
        most = self.info.limits.max_model_len - 1
        return replace(request, prompt_token_ids=request.prompt_token_ids[-4 * most :])


class RenamesDuplicates(BrokenEngine):
    """Accepts a second live request with the same id."""

    _num_renamed = 0

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Appends a number to the id."""
        self._num_renamed += 1
        return replace(request, request_id=f"{request.request_id}#{self._num_renamed}")


class QueuesWithoutBound(BrokenEngine):
    """Queues requests without an upper bound."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._loop = asyncio.get_running_loop()

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Submits an overloaded request again until it is accepted."""
        if isinstance(event.end, Rejected) and event.end.kind == "overloaded":
            self._loop.call_soon_threadsafe(self._loop.call_later, 0.01, self.submit, request, sink)
        else:
            sink(event)


class CountsNoTokens(QueuesWithoutBound):
    """Bounds its queue by requests only, not by tokens."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Submits an overloaded request again while the queue has room for requests."""
        if self.load().num_waiting < self.info.limits.max_queued_requests:
            super().relay(request, event, sink)
        else:
            sink(event)


class OmitsRetryAfter(BrokenEngine):
    """Omits `retry_after_s` from overloaded and draining rejections."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Clears `retry_after_s`."""
        if isinstance(event.end, Rejected):
            event = replace(event, end=replace(event.end, retry_after_s=None))
        sink(event)
