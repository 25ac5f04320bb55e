"""The engine requests of one HTTP request."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from openinfer_contract import (
    EngineDead,
    EngineHandle,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Rejected,
    TokenEvent,
    TokenLogprobs,
    unpack_ids,
)
from openinfer_frontend.errors import ApiError, FrontendError
from openinfer_frontend.generation._choice import Choice, Timing
from openinfer_frontend.generation._event_fan_in import EventFanIn
from openinfer_frontend.metrics._metrics import Metrics
from openinfer_text import OutputStream, Piece

Resubmit = Callable[[Callable[[EngineHandle], None]], Awaitable[bool]]
"""Calls a function with the engine that replaces a dead one; returns False if there is none."""


@dataclass(slots=True, kw_only=True)
class Delta:
    """The part of a choice that one engine event adds."""

    index: int
    text: str
    token_ids: Sequence[int]
    """Ids of the new tokens, cut at the end of the choice; their text may be held back."""
    logprobs: TokenLogprobs | None
    """Logprobs of `token_ids`, and of further tokens if a stop string cut the event."""
    starts: Sequence[int] = ()
    """Offsets of `token_ids` in the choice's text, in characters, if they were asked for."""
    parsed: Sequence[Piece] | None = None
    """The pieces that a parser made of the text; None without a parser."""
    num_reasoning_tokens: int = 0
    """Tokens of reasoning in the choice so far."""
    reason: FinishReason | None = None
    """Why the text ended; None while the choice continues."""
    finish_reason: str | None = None
    """`reason`, or `tool_calls` if the text ended after whole calls."""
    stop_reason: str | int | None = None
    timing: Timing | None = None
    """The stop string or stop token that ended the choice; set together with the finish reason."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request. Each prompt counts once, however many samples it has."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int

    def as_json(self) -> dict[str, object]:
        """Returns OpenAI's usage object."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


class Generation:
    """The engine requests of one HTTP request: submits, reads and aborts them.

    It belongs to one task, and to callbacks of the event loop while that task waits in `next`. Use
    it as a context manager: leaving the block aborts unfinished choices.
    """

    __slots__ = (
        "__weakref__",
        "_choices",
        "_engine",
        "_fan_in",
        "_grammar_param",
        "_resubmit",
        "_is_aborted",
        "_is_cut",
        "_is_prompt_only",
        "_limit_s",
        "_metrics",
        "_num_open",
        "_num_samples",
        "_prompt_param",
    )

    def __init__(
        self,
        engine: EngineHandle,
        requests: Sequence[GenerateRequest],
        *,
        num_samples: int,
        prompt_param: str,
        grammar_param: str | None = None,
        limit_s: float | None = None,
        is_prompt_only: bool = False,
        resubmit: Resubmit | None = None,
        metrics: Metrics,
    ) -> None:
        """Prepares the requests; entering the `with` block submits them.

        Args:
            engine: works on all requests.
            requests: one for each choice; the samples of one prompt are side by side.
            num_samples: choices per prompt.
            prompt_param: the route's name of the prompt, for errors.
            grammar_param: the field that asked for a grammar, for errors.
            limit_s: the server's time limit in seconds, if that is the requests' deadline.
            is_prompt_only: each choice ends before its first token, and has no output.
            resubmit: passes unfinished choices to the engine that replaces a dead one; None: they
                fail.
            metrics: counts what happens.
        """
        self._engine = engine
        self._choices = [Choice(request) for request in requests]
        self._num_samples = num_samples
        self._prompt_param = prompt_param
        self._grammar_param = grammar_param
        self._limit_s = limit_s
        self._is_prompt_only = is_prompt_only
        self._resubmit = resubmit
        self._metrics = metrics
        self._num_open = len(self._choices)
        self._is_aborted = False
        self._is_cut = False
        self._fan_in = EventFanIn(asyncio.get_running_loop())

    @property
    def is_done(self) -> bool:
        """Whether every choice has ended."""
        return self._num_open == 0

    @property
    def is_whole(self) -> bool:
        """Whether every choice finished: none failed or was aborted."""
        return self.is_done and not self._is_cut

    @property
    def num_choices(self) -> int:
        """Number of choices: prompts times samples."""
        return len(self._choices)

    @property
    def requests(self) -> list[GenerateRequest]:
        """The engine requests, choice by choice."""
        return [choice.request for choice in self._choices]

    @property
    def request_ids(self) -> list[str]:
        """The ids of the engine requests."""
        return [choice.request.request_id for choice in self._choices]

    def __enter__(self) -> Self:
        """Submits all requests.

        Raises:
            ApiError: 503, if the engine is dead.
        """
        submitted: list[str] = []
        try:
            for index, choice in enumerate(self._choices):
                choice.submitted_at = time.monotonic()
                self._engine.submit(choice.request, self._fan_in.sink(index))
                submitted.append(choice.request.request_id)
        except EngineDead as error:
            self._engine.abort(submitted)
            raise ApiError.unavailable(error.reason, refusal="engine_unavailable") from error
        self._metrics.count_submission(self._num_samples, self._choices[0].request.stop.max_tokens)
        return self

    def set_outputs(self, outputs: Sequence[OutputStream]) -> None:
        """Sets the output stream of each choice. Call it once, before reading events."""
        for choice, output in zip(self._choices, outputs, strict=True):
            choice.output = output

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The callback refers to this generation. Without this, the reference cycle would leave
        # every finished request to the garbage collector.
        self._fan_in.on_events = None
        if any(not choice.has_left_engine for choice in self._choices):
            self.abort()
        self._count_ends(isinstance(error, Exception) and not isinstance(error, FrontendError))

    def _count_ends(self, is_defect: bool) -> None:
        """Counts, in the metrics, unfinished choices and each finished prompt's longest sample."""
        now = time.monotonic()
        for choice in self._choices:
            if not choice.is_done and choice.loss is not None:
                self._metrics.count_end(choice, "error" if is_defect else choice.loss, None, now)
        if self.is_done:
            for first in range(0, len(self._choices), self._num_samples):
                samples = self._choices[first : first + self._num_samples]
                self._metrics.count_prompt(max(choice.num_output_tokens for choice in samples))

    def listen(self, on_events: Callable[[dict[int, TokenEvent]], bool]) -> None:
        """Sets a callback for events that arrive while `next` waits.

        Args:
            on_events: called on the event loop, outside of the task, with events for `deltas`. It
                is not called with the last event of a choice, after which `next` may have to wait.
                If it returns True, `next` continues to wait, else `next` returns. `next` raises
                what it raises.
        """
        self._fan_in.on_events = on_events

    async def next(self) -> list[Delta]:
        """Waits for events, and returns at most one delta per choice; the list may be empty.

        Raises:
            ApiError: a request was rejected or failed. The whole HTTP request fails then.
        """
        lost: list[int] = []
        events = await self._fan_in.get()
        for index, event in events.items():
            # All ends are recorded before the first one raises: a rejected id may be another
            # request's.
            self._choices[index].record_end(event.end)
        for index, event in events.items():
            choice = self._choices[index]
            if isinstance(event.end, Rejected):
                raise self._api_error(event.end)
            if isinstance(event.end, Failed):
                if not (event.end.is_retryable and self._can_resume(choice)):
                    raise self._api_error(event.end)
                lost.append(index)
                failed, events[index] = event.end, replace(event, end=None)
        deltas = self.deltas(events)
        lost = [index for index in lost if not self._choices[index].is_done]
        if lost:
            await self._resume(lost, failed)
        return deltas

    def deltas(self, events: dict[int, TokenEvent]) -> list[Delta]:
        """Returns the deltas of these events, at most one per choice."""
        deltas = []
        for index, event in events.items():
            delta = self._delta_of(index, self._choices[index], event)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def abort(self) -> None:
        """Aborts the unfinished choices; their finish reason is `abort`."""
        self._is_aborted = True
        left = [c.request.request_id for c in self._choices if not c.has_left_engine]
        self._engine.abort(left)

    def _api_error(self, end: Rejected | Failed) -> ApiError:
        return ApiError.from_end(
            end,
            prompt_param=self._prompt_param,
            grammar_param=self._grammar_param,
            limit_s=self._limit_s,
        )

    def _can_resume(self, choice: Choice) -> bool:
        """Returns whether another engine could continue the choice with the same result.

        A choice is resumed once, because the request itself may have killed the engine.
        """
        has_scores = choice.request.prompt_logprobs is not None
        return not (self._resubmit is None or choice.is_resumed or has_scores)

    async def _resume(self, lost: Sequence[int], failed: Failed) -> None:
        """Submits choices to the next engine, with the output that they already have.

        Raises:
            ApiError: 503 with the dead engine's reason, if no engine took over in time; 408, if the
                deadline passed.
        """
        assert self._resubmit is not None
        # All choices of a request have the same deadline.
        deadline = self._choices[0].request.deadline
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            async with asyncio.timeout(left_s):
                for index in lost:
                    if not await self._resubmit(partial(self._submit_rest, index)):
                        raise self._api_error(failed)
        except TimeoutError:
            message = "the engine died, and the deadline passed before another one took over"
            raise ApiError.deadline_exceeded(message, self._limit_s) from None

    def _submit_rest(self, index: int, engine: EngineHandle) -> None:
        choice = self._choices[index]
        engine.submit(choice.remaining_request(), self._fan_in.sink(index))
        self._engine = engine
        choice.is_resumed, choice.has_left_engine, choice.loss = True, False, "abort"
        if self._is_aborted:
            # The choice was aborted while no engine had it. The new engine reports its end.
            engine.abort((choice.request.request_id,))

    def usage(self, index: int | None = None) -> Usage:
        """Returns the tokens so far, of the whole request or of choice `index`."""
        if index is not None:
            choice = self._choices[index]
            return Usage(
                choice.request.num_prompt_tokens, choice.num_cached_tokens, choice.num_output_tokens
            )
        firsts = self._choices[:: self._num_samples]
        return Usage(
            sum(choice.request.num_prompt_tokens for choice in firsts),
            sum(choice.num_cached_tokens for choice in firsts),
            sum(choice.num_output_tokens for choice in self._choices),
        )

    def prompt_logprobs(self, index: int) -> TokenLogprobs | None:
        """Returns a prompt's logprobs from its second token on; complete with the first delta."""
        return self._choices[index].prompt_logprobs

    def _delta_of(self, index: int, choice: Choice, event: TokenEvent) -> Delta | None:
        choice.output_ids += event.token_ids
        if event.scheduled is not None and not choice.is_resumed:
            choice.cached = event.scheduled.cached
            choice.num_cached_tokens = sum(count for _, count in choice.cached)
            choice.queue_s = event.scheduled.queue_s
        if event.prompt_logprobs is not None:
            earlier, later = choice.prompt_logprobs, event.prompt_logprobs.logprobs
            choice.prompt_logprobs = earlier.merged(later) if earlier else later
        end = event.end
        choice.has_left_engine |= end is not None
        if choice.is_done or not (event.token_ids or end):
            return None
        assert end is None or isinstance(end, Finished)
        now = time.monotonic()
        if self._is_prompt_only:
            if event.token_ids:
                self._count(choice, 0, now)
            self._close(choice, "length", end)
            return Delta(
                index=index,
                text="",
                token_ids=(),
                logprobs=None,
                reason="length",
                finish_reason="length",
            )
        output = choice.output.push(unpack_ids(event.token_ids), end)
        if event.token_ids:
            self._count(choice, len(output.token_ids), now)
        delta = Delta(
            index=index,
            text=output.text,
            token_ids=output.token_ids,
            logprobs=event.logprobs,
            starts=output.starts,
            parsed=output.parsed,
            num_reasoning_tokens=choice.output.num_reasoning_tokens,
        )
        if output.reason is not None:
            delta.reason, delta.finish_reason = output.reason, output.finish_reason
            delta.stop_reason, delta.timing = output.stop_reason, choice.timing(end)
            self._close(choice, output.reason, end)
        return delta

    def _count(self, choice: Choice, num_tokens: int, now: float) -> None:
        """Counts an event's output tokens; 0 if the request only scores its prompt."""
        if choice.first_token_s is None:
            choice.first_token_s = now - choice.submitted_at
            self._metrics.count_first_tokens(choice, num_tokens, now)
        else:
            self._metrics.count_tokens(now - choice.last_token_at, num_tokens)
        choice.last_token_at = now
        choice.num_output_tokens += num_tokens

    def _close(self, choice: Choice, reason: FinishReason, end: Finished | None) -> None:
        self._metrics.count_end(choice, reason, end, time.monotonic())
        choice.is_done = True
        self._num_open -= 1
        self._is_cut |= reason == "abort"
        if not choice.has_left_engine:
            choice.has_left_engine = True
            self._engine.abort((choice.request.request_id,))
