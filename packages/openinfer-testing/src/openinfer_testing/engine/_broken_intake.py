"""Engines that take what they cannot honour."""

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


class RepairsNonsense(BrokenEngine):
    """Values that make no sense are replaced by defaults."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Serves something else than was asked for."""
        return replace(request, sampling=Sampling(temperature=0.0))


class ClampsIds(BrokenEngine):
    """Ids outside the vocabulary are replaced by others."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Clamps."""
        ids = [min(i, self.info.vocab_size - 1) for i in unpack_ids(request.prompt_token_ids)]
        return replace(request, prompt_token_ids=pack_ids(ids))


class DropsWhatItCannot(BrokenEngine):
    """Fields it does not honour are dropped."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Drops them."""
        adapter: Adapter | None = None
        return replace(request, want=(), adapter=adapter, dp_rank=None, kv_transfer=None)


class CutsLongPrompts(BrokenEngine):
    """A prompt that does not fit is cut."""

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Keeps the end."""
        most = self.info.limits.max_model_len - 1
        return replace(request, prompt_token_ids=request.prompt_token_ids[-4 * most :])


class RenamesDuplicates(BrokenEngine):
    """Two live requests may have one id."""

    _num_renamed = 0

    def change(self, request: GenerateRequest) -> GenerateRequest:
        """Makes ids unique by itself."""
        self._num_renamed += 1
        return replace(request, request_id=f"{request.request_id}#{self._num_renamed}")


class NeverOverloaded(BrokenEngine):
    """Whatever does not fit queues without bound."""

    def __init__(self, engine: EngineHandle) -> None:
        super().__init__(engine)
        self._loop = asyncio.get_running_loop()

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Tries again, for ever."""
        if isinstance(event.end, Rejected) and event.end.kind == "overloaded":
            self._loop.call_soon_threadsafe(self._loop.call_later, 0.01, self.submit, request, sink)
        else:
            sink(event)


class CountsNoTokens(NeverOverloaded):
    """Its intake is bounded in requests alone."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Finds room while few requests wait."""
        if self.load().num_waiting < self.info.limits.max_queued_requests:
            super().relay(request, event, sink)
        else:
            sink(event)


class TellsNoTimeToRetry(BrokenEngine):
    """Overloaded and draining rejections do not say when to come back."""

    def relay(self, request: GenerateRequest, event: TokenEvent, sink: EventSink) -> None:
        """Drops the time."""
        if isinstance(event.end, Rejected):
            event = replace(event, end=replace(event.end, retry_after_s=None))
        sink(event)
