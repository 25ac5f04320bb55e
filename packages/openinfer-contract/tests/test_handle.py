import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from openinfer_contract import (
    EngineDead,
    EventBuffer,
    EventSink,
    Finished,
    GenerateRequest,
    Scheduled,
    Ticket,
    TokenEvent,
    pack_ids,
    stream,
    unpack_ids,
)

Make = Callable[..., GenerateRequest]
END = TokenEvent(end=Finished(reason="length"))


def token(token_id: int) -> TokenEvent:
    return TokenEvent(token_ids=pack_ids([token_id]))


class Engine:
    """The parts of a handle that `stream` uses."""

    def __init__(self, events: Iterable[TokenEvent] = ()) -> None:
        self.events = list(events)
        self.sinks: list[EventSink] = []
        self.aborted: list[str] = []
        self.is_dead = False

    def submit(self, request: GenerateRequest, sink: EventSink) -> Ticket:
        if self.is_dead:
            raise EngineDead("gone")
        self.sinks.append(sink)
        for event in self.events:
            sink(event)
        return Ticket(self, request.request_id)  # type: ignore[arg-type]

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted += request_ids


def test_a_buffer_merges_what_is_not_read() -> None:
    buffer = EventBuffer()
    buffer(TokenEvent(scheduled=Scheduled(num_prompt_tokens=1)))
    buffer(token(1))
    buffer(token(2))
    event = buffer.get_blocking(0)
    assert event.scheduled is not None
    assert unpack_ids(event.token_ids) == [1, 2]
    with pytest.raises(TimeoutError):
        buffer.get_blocking(0.001)


def test_a_blocked_thread_is_woken() -> None:
    buffer = EventBuffer()
    got: list[int] = []

    def read() -> None:
        while True:
            event = buffer.get_blocking(5)
            got.extend(unpack_ids(event.token_ids))
            if event.end is not None:
                return

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(500):
        buffer(token(i))
    buffer(END)
    reader.join(5)
    assert got == list(range(500))


def test_a_loop_is_woken_from_another_thread() -> None:
    async def main() -> list[int]:
        buffer = EventBuffer(asyncio.get_running_loop())

        def write() -> None:
            for i in range(500):
                buffer(token(i))
            buffer(END)

        writer = threading.Thread(target=write)
        writer.start()
        got: list[int] = []
        while True:
            event = await asyncio.wait_for(buffer.get(), 5)
            got.extend(unpack_ids(event.token_ids))
            if event.end is not None:
                writer.join()
                return got

    assert asyncio.run(main()) == list(range(500))


def test_a_loop_is_woken_from_itself() -> None:
    async def main() -> TokenEvent:
        loop = asyncio.get_running_loop()
        buffer = EventBuffer(loop)
        loop.call_later(0.005, buffer, token(4))
        return await asyncio.wait_for(buffer.get(), 5)

    assert unpack_ids(asyncio.run(main()).token_ids) == [4]


def test_a_cancelled_read_loses_nothing() -> None:
    async def main() -> TokenEvent:
        buffer = EventBuffer(asyncio.get_running_loop())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(buffer.get(), 0.005)
        buffer(token(1))
        return await asyncio.wait_for(buffer.get(), 5)

    assert unpack_ids(asyncio.run(main()).token_ids) == [1]


def test_events_after_the_loop_is_closed_are_kept() -> None:
    loop = asyncio.new_event_loop()
    buffer = EventBuffer(loop)
    loop.close()
    thread = threading.Thread(target=buffer, args=(END,))
    thread.start()
    thread.join()
    assert buffer.get_blocking(0).end is not None


def test_a_stream_yields_to_its_end(make_request: Make) -> None:
    async def main() -> list[TokenEvent]:
        return [event async for event in stream(engine, make_request())]  # type: ignore[arg-type]

    engine = Engine([token(1), token(2), END])
    events = asyncio.run(main())
    assert unpack_ids(b"".join(event.token_ids for event in events)) == [1, 2]
    assert events[-1].end is not None
    assert engine.aborted == []


async def _leave_by_break(events: Any) -> None:
    async for _ in events:
        break
    await events.aclose()


async def _leave_by_close(events: Any) -> None:
    await anext(events)
    await events.aclose()


async def _leave_by_cancellation(events: Any) -> None:
    async def read() -> None:
        async for _ in events:
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _leave_by_error(events: Any) -> None:
    await anext(events)
    with pytest.raises(RuntimeError):
        await events.athrow(RuntimeError("reader"))


@pytest.mark.parametrize(
    "leave", [_leave_by_break, _leave_by_close, _leave_by_cancellation, _leave_by_error]
)
def test_leaving_a_stream_early_aborts(leave: Any, make_request: Make) -> None:
    async def main() -> None:
        await leave(stream(engine, make_request(request_id="mine")))  # type: ignore[arg-type]

    engine = Engine([token(1)])
    asyncio.run(main())
    assert engine.aborted == ["mine"]


def test_reading_to_the_end_and_closing_does_not_abort(make_request: Make) -> None:
    async def main() -> None:
        events: Any = stream(engine, make_request())  # type: ignore[arg-type]
        async for event in events:
            if event.end is not None:
                break
        await events.aclose()

    engine = Engine([token(1), END])
    asyncio.run(main())
    assert engine.aborted == []


def test_a_dead_engine_raises_at_the_first_read(make_request: Make) -> None:
    async def main() -> None:
        async for _ in stream(engine, make_request()):  # type: ignore[arg-type]
            pass

    engine = Engine()
    engine.is_dead = True
    with pytest.raises(EngineDead):
        asyncio.run(main())


def test_a_ticket_aborts_its_request() -> None:
    engine = Engine()
    Ticket(engine, "r9").abort()  # type: ignore[arg-type]
    assert engine.aborted == ["r9"]
