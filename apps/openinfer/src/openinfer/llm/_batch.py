"""Samples of a batch, and the loop that submits them to an engine and reads their events."""

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openinfer.errors import GenerationFailed
from openinfer.llm._sampling_params import to_request_rejected
from openinfer_contract import (
    EngineDead,
    EngineHandle,
    Failed,
    GenerateRequest,
    Rejected,
    TokenEvent,
    TokenLogprobs,
    unpack_floats,
    unpack_ids,
)
from openinfer_text import AssistantTurn, OutputDelta, OutputStream

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
    """Whole output text, with tool calls and reasoning."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    """Logprobs of `token_ids`, if they were asked for."""
    top_logprobs: list[dict[int, float]] | None = None
    """For each token, the logprobs of the most likely ids and of `logprob_token_ids`, if they were
    asked for."""
    prompt_logprobs: list[float] | None = None
    """Logprobs of the prompt's tokens from the second one on, if they were asked for."""
    prompt_top_logprobs: list[dict[int, float]] | None = None
    """For each of these tokens, the logprobs of the most likely ids."""
    finish_reason: str = ""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the text; None for an end-of-sequence id."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    message: dict[str, Any] | None = None
    """The response as an assistant message: `content`, `reasoning`, `tool_calls`. Set in chats
    only.
    """


class Sample:
    """A completion that is being generated."""

    def __init__(
        self,
        completion: Completion,
        request: GenerateRequest,
        output: OutputStream,
        *,
        is_chat: bool = False,
    ) -> None:
        """Begins a sample.

        Args:
            completion: the completion to fill in.
            request: the request that the engine works on.
            output: turns the request's tokens into text and pieces.
            is_chat: whether to set the completion's `message`.
        """
        self.completion = completion
        self.request = request
        self.has_ended = False
        """Whether the engine has ended the request."""
        self._output = output
        self._turn = AssistantTurn() if is_chat else None
        options = request.logprobs
        self._scored_ids = [] if options is None else unpack_ids(options.token_ids)
        if options is not None:
            completion.logprobs, completion.top_logprobs = [], []
        if request.prompt_logprobs is not None:
            completion.prompt_logprobs, completion.prompt_top_logprobs = [], []

    @property
    def is_done(self) -> bool:
        """Whether the text has ended. A stop string ends it before the engine ends the request."""
        return self._output.is_done

    def take(self, event: TokenEvent) -> OutputDelta | None:
        """Adds an event; returns what it adds to the text, or None if it adds nothing.

        Raises:
            RequestRejected: the engine refused the request.
            GenerationFailed: the engine failed while it worked on the request.
        """
        completion, end = self.completion, event.end
        self.has_ended = end is not None
        if isinstance(end, Rejected):
            raise to_request_rejected(end)
        if isinstance(end, Failed):
            raise GenerationFailed(end.message)
        if self.is_done:
            return None
        if event.scheduled is not None:
            completion.num_prompt_tokens = event.scheduled.num_prompt_tokens
            completion.num_cached_tokens = sum(count for _, count in event.scheduled.cached)
        if event.prompt_logprobs is not None:
            self._add_prompt_logprobs(event.prompt_logprobs.logprobs)
        delta = self._output.push(unpack_ids(event.token_ids), end)
        completion.text += delta.text
        completion.token_ids += delta.token_ids
        if event.logprobs is not None:
            self._add_logprobs(event.logprobs, len(delta.token_ids))
        if self._turn is not None:
            self._turn.add(delta.pieces)
        if delta.finish_reason is not None:
            completion.finish_reason = delta.finish_reason
            completion.stop_reason = delta.stop_reason
            if self._turn is not None:
                completion.message = self._turn.message()
        return delta

    def _add_logprobs(self, logprobs: TokenLogprobs, num_tokens: int) -> None:
        completion, width = self.completion, len(self._scored_ids)
        if completion.logprobs is None or completion.top_logprobs is None:
            return
        completion.logprobs += unpack_floats(logprobs.sampled)[:num_tokens]
        by_id = unpack_floats(logprobs.by_id)
        for row, top in enumerate(_top_logprobs(logprobs, num_tokens)):
            values = by_id[row * width : (row + 1) * width]
            completion.top_logprobs.append(top | dict(zip(self._scored_ids, values, strict=True)))

    def _add_prompt_logprobs(self, logprobs: TokenLogprobs) -> None:
        completion = self.completion
        if completion.prompt_logprobs is None or completion.prompt_top_logprobs is None:
            return
        values = unpack_floats(logprobs.sampled)
        completion.prompt_logprobs += values
        completion.prompt_top_logprobs += _top_logprobs(logprobs, len(values))


def _top_logprobs(logprobs: TokenLogprobs, num_tokens: int) -> list[dict[int, float]]:
    """Returns the logprobs of the most likely ids, for each of the first tokens."""
    width = logprobs.num_top
    ids, values = unpack_ids(logprobs.top_ids), unpack_floats(logprobs.top)
    spans = [slice(row * width, (row + 1) * width) for row in range(num_tokens)]
    return [dict(zip(ids[span], values[span], strict=True)) for span in spans]


class Batch:
    """Runs samples on an engine without ever overfilling its queue."""

    def __init__(
        self,
        engine: EngineHandle,
        samples: Sequence[Sample],
        advance: Callable[[], None],
    ) -> None:
        """Prepares a batch.

        Args:
            engine: the engine that runs the samples.
            samples: the samples, in the order of submission.
            advance: called once for each finished sample.
        """
        self._engine = engine
        self._samples = samples
        self._advance = advance
        self._events: queue.SimpleQueue[tuple[int, TokenEvent]] = queue.SimpleQueue()
        limits = engine.info.limits
        self._max_live = max(1, min(2 * limits.max_num_seqs, limits.max_queued_requests))
        self._max_live_tokens = max(1, limits.max_queued_tokens)
        self._live: dict[int, int] = {}
        """Prompt tokens of each submitted sample that has not ended, by its index."""
        self._num_submitted = 0

    def run(self) -> None:
        """Returns when every sample is done. On any error, Ctrl-C included, it aborts the rest."""
        try:
            self._fill()
            while self._live:
                self._take(*self._events.get())
                self._fill()
        finally:
            # This includes a sample whose submission was interrupted.
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
