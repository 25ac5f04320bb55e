"""The samples of a batch while an engine works on them."""

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openinfer.errors import GenerationFailed, RequestRejected
from openinfer_contract import (
    EngineDead,
    EngineHandle,
    Failed,
    Finished,
    GenerateRequest,
    Rejected,
    TokenEvent,
    unpack_floats,
    unpack_ids,
)
from openinfer_text import AssistantTurn, OutputParser, OutputText, Piece

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Completion:
    """One sample of one prompt."""

    prompt: Prompt | Sequence[Message]
    index: int
    """The prompt's place in the batch."""
    sample: int = 0
    text: str = ""
    """All that the model wrote, calls and reasoning included."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    """Of `token_ids`, when asked for."""
    top_logprobs: list[dict[int, float]] | None = None
    """Per token, the most likely ids and their logprobs, when asked for."""
    finish_reason: str = ""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for an end-of-sequence id."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    message: dict[str, Any] | None = None
    """A chat's answer as a message to go on with: `content`, `reasoning`, `tool_calls`."""


class Sample:
    """A completion in the making."""

    def __init__(
        self,
        completion: Completion,
        request: GenerateRequest,
        output: OutputText,
        named_stops: Sequence[int] = (),
        parser: OutputParser | None = None,
    ) -> None:
        """Begins.

        Args:
            completion: what is filled in.
            request: what the engine works on.
            output: turns its ids into text.
            named_stops: stop token ids that the caller asked for.
            parser: of a chat's answer; makes the completion's message.
        """
        self._named_stops = frozenset(named_stops)
        self.completion = completion
        self.request = request
        self.is_done = False
        """Nothing more will be added; a stop string is done before its request has ended."""
        self.has_ended = False
        self.pieces: list[Piece] = []
        """What the last event added, parsed."""
        self._output = output
        self._parser = parser
        self._turn = AssistantTurn()
        if request.logprobs is not None:
            completion.logprobs, completion.top_logprobs = [], []

    def take(self, event: TokenEvent) -> str:
        """Adds an event; returns the new text.

        Raises:
            RequestRejected: the engine refused the request.
            GenerationFailed: the engine could not go on with it.
        """
        completion, end = self.completion, event.end
        self.has_ended = end is not None
        if isinstance(end, Rejected):
            raise RequestRejected(end.message, end.field)
        if isinstance(end, Failed):
            raise GenerationFailed(end.message)
        self.pieces = []
        if self.is_done:
            return ""
        if event.scheduled is not None:
            completion.num_prompt_tokens = event.scheduled.num_prompt_tokens
            completion.num_cached_tokens = sum(count for _, count in event.scheduled.cached)
        token_ids = unpack_ids(event.token_ids)
        text, stopped_by, num_used = self._output.push(token_ids)
        if end is not None and stopped_by is None:
            rest, stopped_by, _ = self._output.finish()
            text += rest
        completion.text += text
        completion.token_ids += token_ids[:num_used]
        self._add_logprobs(event, num_used)
        if stopped_by is not None:
            self.is_done = True
            completion.finish_reason, completion.stop_reason = "stop", stopped_by
        elif isinstance(end, Finished):
            self.is_done = True
            completion.finish_reason = end.reason
            if end.stop_token_id in self._named_stops:
                completion.stop_reason = end.stop_token_id
        if self._parser is not None:
            self._parse(self._parser, text)
        return text

    def _parse(self, parser: OutputParser, text: str) -> None:
        self.pieces = parser.push(text)
        if self.is_done:
            self.pieces += parser.finish()
        self._turn.add(self.pieces)
        if self.is_done:
            self.completion.message = self._turn.message()
            self.completion.finish_reason = parser.finish_reason(self.completion.finish_reason)

    def _add_logprobs(self, event: TokenEvent, num_used: int) -> None:
        completion, logprobs = self.completion, event.logprobs
        if logprobs is None or completion.logprobs is None or completion.top_logprobs is None:
            return
        completion.logprobs += unpack_floats(logprobs.sampled)[:num_used]
        width = logprobs.num_top
        ids, values = unpack_ids(logprobs.top_ids), unpack_floats(logprobs.top)
        for row in range(num_used):
            span = slice(row * width, (row + 1) * width)
            completion.top_logprobs.append(dict(zip(ids[span], values[span], strict=True)))


class Batch:
    """Keeps the engine's intake fed and never full, whatever the size of the batch."""

    def __init__(
        self,
        engine: EngineHandle,
        samples: Sequence[Sample],
        advance: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._samples = samples
        self._advance = advance
        self._events: queue.SimpleQueue[tuple[int, TokenEvent]] = queue.SimpleQueue()
        limits = engine.info.limits
        self._max_live = max(1, min(2 * limits.max_num_seqs, limits.max_queued_requests))
        self._max_live_tokens = max(1, limits.max_queued_tokens)
        self._live: dict[int, int] = {}
        self._num_submitted = 0

    def run(self) -> None:
        """Returns when every sample is done; on any error, Ctrl-C included, aborts the rest."""
        try:
            self._fill()
            while self._live:
                self._take(*self._events.get())
                self._fill()
        finally:
            # Also a sample whose submission an interrupt cut short.
            left = [s for s in self._samples[: self._num_submitted] if not s.has_ended]
            self._engine.abort(sample.request.request_id for sample in left)
            while self._live:
                index, event = self._events.get()
                if event.end is not None:
                    del self._live[index]

    def _fill(self) -> None:
        while self._num_submitted < len(self._samples) and len(self._live) < self._max_live:
            index = self._num_submitted
            request = self._samples[index].request
            tokens = request.num_prompt_tokens
            if self._live and sum(self._live.values()) + tokens > self._max_live_tokens:
                return
            self._num_submitted += 1
            try:
                self._engine.submit(request, lambda event, i=index: self._events.put((i, event)))
            except EngineDead as error:
                raise GenerationFailed(error.reason) from error
            self._live[index] = tokens

    def _take(self, index: int, event: TokenEvent) -> None:
        sample = self._samples[index]
        if event.end is not None:
            del self._live[index]
        was_done = sample.is_done
        sample.take(event)
        if sample.is_done and not was_done:
            self._advance()
            if not sample.has_ended:
                self._engine.abort((sample.request.request_id,))
