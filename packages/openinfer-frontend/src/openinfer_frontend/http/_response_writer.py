"""The path of a response: from the engine's events, through a wire format, to the connection."""

from collections.abc import Awaitable, Callable
from functools import partial

from openinfer_contract import TokenEvent
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Delta, Generation
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.protocols._json import to_json, to_json_in_slices
from openinfer_frontend.protocols._wire_format import WireFormat

RunLong = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs a function in a text thread, so that it delays no stream."""


class ResponseWriter:
    """Writes one response, whole or event by event.

    Most events of a stream are written from the engine's callback: waking the task costs as much
    as everything else. The callback touches as few objects as possible, because with thousands of
    streams they are not in the processor's caches.
    """

    __slots__ = (
        "_exchange",
        "_format",
        "_generation",
        "_has_long_openings",
        "_has_usage",
        "_opened",
        "_run_long",
        "_send_now",
        "_unsent",
    )

    def __init__(
        self,
        exchange: HttpExchange,
        generation: Generation,
        wire_format: WireFormat,
        run_long: RunLong,
        *,
        has_long_openings: bool = False,
    ) -> None:
        """Prepares; nothing is sent.

        Args:
            exchange: has no response yet.
            generation: submitted.
            wire_format: of the response.
            run_long: runs a long encoding in a text thread.
            has_long_openings: whether the openings of a stream take long to encode, because they
                have the logprobs of long prompts.
        """
        self._exchange = exchange
        self._generation = generation
        self._format = wire_format
        self._run_long = run_long
        self._has_long_openings = has_long_openings
        self._send_now: Callable[[bytes], bool] | None = None
        """Sends events without a task; set once the stream has begun, if the server supports it."""
        self._has_usage = wire_format.options.continuous_usage
        self._opened: set[int] = set()
        """Choices whose opening was written."""
        self._unsent = b""

    async def write_whole(self, is_long: Callable[[], bool]) -> None:
        """Waits for every choice to end, then sends one JSON body.

        Args:
            is_long: returns whether the body takes long to encode; called when all deltas have
                arrived.

        Raises:
            ApiError: the generation failed.
        """
        generation, wire_format = self._generation, self._format
        while not generation.is_done:
            for delta in await generation.next():
                wire_format.add(delta)
        is_long_body = is_long()

        def body() -> bytes:
            scores = [generation.prompt_logprobs(index) for index in range(generation.num_choices)]
            whole = wire_format.body(generation.usage(), scores)
            return to_json_in_slices(whole) if is_long_body else to_json(whole)

        await self._exchange.respond(200, await self._run_long(body) if is_long_body else body())

    async def write_stream(self) -> ApiError | None:
        """Sends events as they come.

        Returns:
            The error that ended the stream, if it failed after its first event.

        Raises:
            ApiError: the generation failed before its first event, so the response can have an
                error status.
        """
        exchange = self._exchange
        try:
            with exchange.interruptible():
                await exchange.end_stream(await self._write_events())
        except ApiError as error:
            if not exchange.is_stream:
                raise
            await exchange.end_stream(self._format.failure(error))
            return error
        return None

    async def _write_events(self) -> bytes:
        """Sends all events except the last ones, and returns the last ones."""
        exchange, generation = self._exchange, self._generation
        if not self._has_long_openings:
            generation.listen(self._deliver)
        while not generation.is_done:
            try:
                deltas = await generation.next()
            except ApiError:
                if exchange.has_begun:
                    await exchange.send_events(self._unsent)
                raise
            # The status line waits for the first event: until then a failure has its own status.
            if (deltas or self._unsent) and not exchange.has_begun:
                await exchange.begin_stream()
                self._send_now = exchange.send_now
            if self._has_long_openings:
                self._unsent += await self._long_openings(deltas)
            self._unsent += self._events(deltas)
            if self._unsent and not generation.is_done:
                events, self._unsent = self._unsent, b""
                await exchange.send_events(events)
                if self._has_long_openings and len(self._opened) == generation.num_choices:
                    generation.listen(self._deliver)
        return self._unsent + self._format.ending(generation.usage())

    def _deliver(self, events: dict[int, TokenEvent]) -> bool:
        """Called by the generation: sends events at once if the send need not wait."""
        generation = self._generation
        unsent = self._events(generation.deltas(events))
        if not generation.is_done and (not unsent or self._is_sent(unsent)):
            return True
        self._unsent = unsent
        return False

    def _is_sent(self, events: bytes) -> bool:
        send_now = self._send_now
        if send_now is not None:
            return send_now(events)
        if self._exchange.has_begun or not self._exchange.begin_now(events):
            return False
        self._send_now = self._exchange.send_now
        return True

    def _events(self, deltas: list[Delta]) -> bytes:
        wire_format, parts = self._format, []
        for delta in deltas:
            index = delta.index
            if index not in self._opened:
                self._opened.add(index)
                parts.append(self._opening(index))
            usage = self._generation.usage(index) if self._has_usage else None
            parts.append(wire_format.chunk(delta, usage))
        return b"".join(parts)

    def _opening(self, index: int) -> bytes:
        generation = self._generation
        scores = generation.prompt_logprobs(index)
        return self._format.opening(index, generation.usage(index), scores)

    async def _long_openings(self, deltas: list[Delta]) -> bytes:
        """Returns the openings of choices that have their first delta, made in a text thread."""
        parts = []
        for index in sorted({delta.index for delta in deltas} - self._opened):
            self._opened.add(index)
            parts.append(await self._run_long(partial(self._opening, index)))
        return b"".join(parts)
