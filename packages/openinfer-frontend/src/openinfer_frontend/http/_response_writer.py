"""An answer on its way out: from the engine's events to the connection, whole or as they come."""

from collections.abc import Awaitable, Callable
from functools import partial

from openinfer_contract import TokenEvent
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Delta, Generation
from openinfer_frontend.http._exchange import Exchange
from openinfer_frontend.protocols._json import to_json, to_json_in_slices
from openinfer_frontend.protocols._response_format import AnswerFormat

RunLong = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs what may take long where it delays no stream."""


async def send_whole(
    exchange: Exchange,
    generation: Generation,
    form: AnswerFormat,
    run_long: RunLong,
    *,
    is_long: Callable[[], bool],
) -> None:
    """Answers once all is there.

    Args:
        exchange: nothing was answered yet.
        generation: submitted.
        form: of the answer.
        run_long: where a long answer is spelled.
        is_long: whether this one is, asked once all is there.

    Raises:
        ApiError: the generation fails.
    """
    while not generation.is_done:
        for delta in await generation.next():
            form.add(delta)

    is_spelled_apart = is_long()

    def body() -> bytes:
        scores = [generation.prompt_logprobs(index) for index in range(generation.num_choices)]
        whole = form.body(generation.usage(), scores)
        return to_json_in_slices(whole) if is_spelled_apart else to_json(whole)

    await exchange.respond(200, await run_long(body) if is_spelled_apart else body())


async def send_stream(
    exchange: Exchange, generation: Generation, form: AnswerFormat, run_long: RunLong | None
) -> ApiError | None:
    """Answers event by event; arguments as for `send_whole`, `run_long` None for short openings.

    Returns:
        What the stream ended with, if it failed after it began.

    Raises:
        ApiError: the generation fails before the first event; later ones are events themselves.
    """
    try:
        with exchange.interruptible():
            await exchange.end_stream(await _Relay(exchange, generation, form, run_long).run())
    except ApiError as error:
        if not exchange.is_stream:
            raise
        await exchange.end_stream(form.failure(error))
        return error
    return None


class _Relay:
    """Sends one answer's events.

    Most go out from the engine's callback: waking the task costs as much as all the rest. What is
    read there lies in as few objects as can be: with thousands of streams all of it is cold.
    """

    __slots__ = (
        "_exchange",
        "_form",
        "_generation",
        "_is_counted",
        "_is_open",
        "_run_long",
        "_send_now",
        "_unsent",
    )

    def __init__(
        self,
        exchange: Exchange,
        generation: Generation,
        form: AnswerFormat,
        run_long: RunLong | None,
    ) -> None:
        self._exchange = exchange
        self._generation = generation
        self._form = form
        self._run_long = run_long
        self._send_now: Callable[[bytes], bool] | None = None
        """Once the answer has begun, and where the server has it."""
        self._is_counted = form.options.continuous_usage
        self._is_open: set[int] = set()
        self._unsent = b""

    async def run(self) -> bytes:
        """Sends all events but the last ones; returns these."""
        exchange, generation = self._exchange, self._generation
        if self._run_long is None:
            generation.listen(self._pass_on)
        while not generation.is_done:
            try:
                deltas = await generation.next()
            except ApiError:
                if exchange.has_begun:
                    await exchange.send_events(self._unsent)
                raise
            # Until now a refusal could still have a status of its own.
            if (deltas or self._unsent) and not exchange.has_begun:
                await exchange.begin_stream()
                self._send_now = exchange.send_now
            self._unsent += await self._open_long(deltas)
            self._unsent += self._render(deltas)
            if self._unsent and not generation.is_done:
                events, self._unsent = self._unsent, b""
                await exchange.send_events(events)
                if self._run_long is not None and len(self._is_open) == generation.num_choices:
                    generation.listen(self._pass_on)
        return self._unsent + self._form.ending(generation.usage())

    def _pass_on(self, events: dict[int, TokenEvent]) -> bool:
        generation = self._generation
        unsent = self._render(generation.deltas(events))
        if not generation.is_done and (not unsent or self._is_sent(unsent)):
            return True
        self._unsent = unsent
        return False

    def _begin_now(self, events: bytes) -> bool:
        if not self._exchange.begin_now(events):
            return False
        self._send_now = self._exchange.send_now
        return True

    def _is_sent(self, events: bytes) -> bool:
        send_now = self._send_now
        if send_now is not None:
            return send_now(events)
        return not self._exchange.has_begun and self._begin_now(events)

    def _render(self, deltas: list[Delta]) -> bytes:
        form, parts = self._form, []
        for delta in deltas:
            index = delta.index
            if index not in self._is_open:
                self._is_open.add(index)
                parts.append(self._opening(index))
            usage = self._generation.usage(index) if self._is_counted else None
            parts.append(form.chunk(delta, usage))
        return b"".join(parts)

    def _opening(self, index: int) -> bytes:
        generation = self._generation
        scores = generation.prompt_logprobs(index)
        return self._form.opening(index, generation.usage(index), scores)

    async def _open_long(self, deltas: list[Delta]) -> bytes:
        """The openings of choices with long prompts, made where they delay no stream."""
        if self._run_long is None:
            return b""
        parts = []
        for index in sorted({delta.index for delta in deltas} - self._is_open):
            self._is_open.add(index)
            parts.append(await self._run_long(partial(self._opening, index)))
        return b"".join(parts)
