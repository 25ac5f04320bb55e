"""Events: what an engine sends for each request, and the message that carries one step's events.

The events of one request follow the grammar

    Rejected | Scheduled? (PromptLogprobs | Tokens | KvTransfer)* (Finished | Failed)

One `TokenEvent` is one request's part of one step. If the reader was busy, it is the merged part of
several steps. `StepEvents` carries all events of one step over a connection, as columns.
`StreamState` checks that the events of a request follow the grammar.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from openinfer_contract._columns import num_ids, pack_ids, unpack_ids
from openinfer_contract.errors import StreamOrderError

RejectionKind = Literal[
    "invalid",  # a field's value is out of range: HTTP status 400
    "unsupported",  # this engine lacks a feature that the request uses: 400
    "too_long",  # the prompt does not fit into max_model_len: 400
    "not_found",  # the adapter does not exist: 404
    "duplicate",  # a live request has the same id: 409
    "overloaded",  # the waiting queue is full: 503, retry
    "draining",  # the engine is shutting down: 503, retry
]
FinishReason = Literal["stop", "length", "abort"]
TierTokens = tuple[tuple[str, int], ...]
"""Cached tokens by tier, such as `(("device", 1024), ("host", 512))`."""


class Scheduled(Struct, frozen=True, array_like=True, kw_only=True):
    """The request was admitted for the first time. It is not sent again after a preemption."""

    num_prompt_tokens: int
    cached: TierTokens = ()
    """Prompt tokens found in the prefix cache."""
    queue_s: float = 0.0
    """Seconds between the request's arrival and its admission."""


class TokenLogprobs(Struct, frozen=True, array_like=True, kw_only=True):
    """Logprobs of n consecutive tokens, as columns."""

    sampled: bytes
    """f32 [n]: logprobs of the tokens themselves."""
    ranks: bytes
    """u32 [n]: ranks of the tokens; 1 is the most likely token of its position."""
    num_top: int = 0
    top_ids: bytes = b""
    """u32 [n, num_top]: ids of the most likely tokens, most likely first."""
    top: bytes = b""
    """f32 [n, num_top]: logprobs of `top_ids`."""
    by_id: bytes = b""
    """f32 [n, number of `LogprobOptions.token_ids`]: logprobs of these ids."""

    def merged(self, later: "TokenLogprobs") -> "TokenLogprobs":
        """Returns these logprobs followed by those of later tokens of the same request."""
        return TokenLogprobs(
            sampled=self.sampled + later.sampled,
            ranks=self.ranks + later.ranks,
            num_top=self.num_top,
            top_ids=self.top_ids + later.top_ids,
            top=self.top + later.top,
            by_id=self.by_id + later.by_id,
        )


class PromptLogprobs(Struct, frozen=True, array_like=True, kw_only=True):
    """Logprobs of the prompt tokens from position `start` on."""

    start: int
    logprobs: TokenLogprobs


class KvTransfer(Struct, frozen=True, array_like=True):
    """Opaque parameters with which another engine can take over this request's KV cache."""

    parameters: bytes


class Timings(Struct, frozen=True, array_like=True, kw_only=True):
    """Seconds that a request spent waiting, in prefill and in decode."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Finished(Struct, frozen=True, array_like=True, kw_only=True, tag="finished"):
    """The last event of a request that stopped by its own rules or was aborted."""

    reason: FinishReason
    stop_token_id: int | None = None
    """The id that ended the request, if a stop token did."""
    num_prompt_tokens: int = 0
    """Length of `GenerateRequest.prompt_token_ids`, including its output prefix."""
    num_output_tokens: int = 0
    """Sampled tokens plus the request's output prefix: the number that `StopRules.max_tokens`
    bounds."""
    cached: TierTokens = ()
    """Prompt tokens found in the prefix cache."""
    timings: Timings = Timings()
    num_preemptions: int = 0


class Failed(Struct, frozen=True, array_like=True, kw_only=True, tag="failed"):
    """The last event of a request that the engine could not complete."""

    message: str
    is_retryable: bool = False
    """Whether the same request may succeed on another try, or on another engine."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    field: str = ""
    """Dotted name of the request's field that caused the failure, such as `grammar`. Empty: the
    request did not cause it."""


class Rejected(Struct, frozen=True, array_like=True, kw_only=True, tag="rejected"):
    """The only event of a request that was refused before anything ran."""

    kind: RejectionKind
    message: str
    field: str = ""
    """Dotted name of the request's field at fault, such as `sampling.top_p`."""
    retry_after_s: float | None = None
    """Seconds after which the client should retry. None: no such advice."""


End = Finished | Failed | Rejected


class TokenEvent(Struct, frozen=True, kw_only=True):
    """The events of one request since its previous `TokenEvent`, in the order of the fields."""

    scheduled: Scheduled | None = None
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: bytes = b""
    """u32 column of the sampled ids, including the stop id."""
    logprobs: TokenLogprobs | None = None
    kv_transfer: KvTransfer | None = None
    end: End | None = None
    weights_version: int = 0
    """Version of the weights that sampled the tokens. `UpdateWeights` increments it."""

    @property
    def num_tokens(self) -> int:
        """Number of output tokens in this event."""
        return num_ids(self.token_ids)

    def merged(self, later: "TokenEvent") -> "TokenEvent":
        """Returns this event and the next one of the same request as one event."""
        logprobs, prompt = self.logprobs, self.prompt_logprobs
        if later.logprobs is not None:
            logprobs = logprobs.merged(later.logprobs) if logprobs else later.logprobs
        if later.prompt_logprobs is not None:
            prompt = (
                replace(prompt, logprobs=prompt.logprobs.merged(later.prompt_logprobs.logprobs))
                if prompt
                else later.prompt_logprobs
            )
        return TokenEvent(
            scheduled=self.scheduled or later.scheduled,
            prompt_logprobs=prompt,
            token_ids=self.token_ids + later.token_ids,
            logprobs=logprobs,
            kv_transfer=later.kv_transfer or self.kv_transfer,
            end=later.end,
            weights_version=later.weights_version,
        )


class StepEvents(Struct, frozen=True, array_like=True, kw_only=True, tag="step"):
    """All events of one step on one connection, as columns with one row for each request.

    Columns that most rows leave empty are pairs of (row, value).
    """

    step_id: int
    weights_version: int
    stream_ids: bytes
    """u32 [rows]: the stream ids that the client chose in `Submit`."""
    num_tokens: bytes
    """u32 [rows]: number of tokens of each row."""
    token_ids: bytes
    """u32 [sum of num_tokens]: the tokens of all rows, one row after the other."""
    scheduled: tuple[tuple[int, Scheduled], ...] = ()
    logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
    prompt_logprobs: tuple[tuple[int, PromptLogprobs], ...] = ()
    kv_transfers: tuple[tuple[int, KvTransfer], ...] = ()
    ends: tuple[tuple[int, Finished | Failed | Rejected], ...] = ()

    @staticmethod
    def from_rows(
        step_id: int, weights_version: int, rows: Iterable[tuple[int, TokenEvent]]
    ) -> "StepEvents":
        """Builds the columns from (stream id, event) pairs."""
        table = list(rows)
        events = [event for _, event in table]
        return StepEvents(
            step_id=step_id,
            weights_version=weights_version,
            stream_ids=pack_ids(stream_id for stream_id, _ in table),
            num_tokens=pack_ids(event.num_tokens for event in events),
            token_ids=b"".join(event.token_ids for event in events),
            scheduled=tuple((i, e.scheduled) for i, e in enumerate(events) if e.scheduled),
            logprobs=tuple((i, e.logprobs) for i, e in enumerate(events) if e.logprobs),
            prompt_logprobs=tuple(
                (i, e.prompt_logprobs) for i, e in enumerate(events) if e.prompt_logprobs
            ),
            kv_transfers=tuple((i, e.kv_transfer) for i, e in enumerate(events) if e.kv_transfer),
            ends=tuple((i, e.end) for i, e in enumerate(events) if e.end),
        )

    def rows(self) -> Iterator[tuple[int, TokenEvent]]:
        """Yields the (stream id, event) pairs of this step."""
        if not (
            self.scheduled
            or self.logprobs
            or self.prompt_logprobs
            or self.kv_transfers
            or self.ends
        ):
            yield from self._plain_rows()
            return
        scheduled, logprobs = dict(self.scheduled), dict(self.logprobs)
        prompts, transfers = dict(self.prompt_logprobs), dict(self.kv_transfers)
        ends = dict(self.ends)
        begin = 0
        counts = unpack_ids(self.num_tokens)
        for row, (stream_id, count) in enumerate(
            zip(unpack_ids(self.stream_ids), counts, strict=True)
        ):
            end = begin + 4 * count
            yield (
                stream_id,
                TokenEvent(
                    scheduled=scheduled.get(row),
                    prompt_logprobs=prompts.get(row),
                    token_ids=self.token_ids[begin:end],
                    logprobs=logprobs.get(row),
                    kv_transfer=transfers.get(row),
                    end=ends.get(row),
                    weights_version=self.weights_version,
                ),
            )
            begin = end

    def _plain_rows(self) -> Iterator[tuple[int, TokenEvent]]:
        """Yields the pairs of a step that carries nothing but tokens, which is the common case."""
        begin, version, column = 0, self.weights_version, self.token_ids
        counts = unpack_ids(self.num_tokens)
        for stream_id, count in zip(unpack_ids(self.stream_ids), counts, strict=True):
            end = begin + 4 * count
            yield stream_id, TokenEvent(token_ids=column[begin:end], weights_version=version)
            begin = end


class StreamState:
    """Checks that the events of one request follow the grammar. Every handle keeps one per sink.

    new --Scheduled--> open --Finished | Failed--> ended
    new --Tokens...--> open
    new --Rejected | Finished | Failed--> ended
    """

    __slots__ = ("_request_id", "_state")

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._state: Literal["new", "open", "ended"] = "new"

    @property
    def is_ended(self) -> bool:
        """Whether the last event has passed."""
        return self._state == "ended"

    def advance(self, event: TokenEvent) -> None:
        """Checks the next event.

        Raises:
            StreamOrderError: the grammar does not allow this event here.
        """
        if self._state == "ended":
            raise self._error("an event after the terminal one")
        has_content = bool(
            event.token_ids or event.prompt_logprobs or event.kv_transfer or event.logprobs
        )
        if event.scheduled and self._state == "open":
            raise self._error("Scheduled twice, or after the first content")
        if isinstance(event.end, Rejected) and (
            self._state == "open" or event.scheduled or has_content
        ):
            raise self._error("Rejected after another event")
        if event.end is not None:
            self._state = "ended"
        elif event.scheduled or has_content:
            self._state = "open"
        else:
            raise self._error("an empty event")

    def _error(self, what: str) -> StreamOrderError:
        return StreamOrderError(f"request {self._request_id!r} ({self._state}): {what}")
