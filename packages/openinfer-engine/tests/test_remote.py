"""The client against a hand-made engine at the other end of a socket pair."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from openinfer_contract import (
    Abort,
    ClientFrameReader,
    Close,
    CommandDone,
    Control,
    ControlResult,
    Drain,
    Drained,
    EngineDead,
    EngineInfo,
    EngineMessage,
    Failed,
    Finished,
    GetLoad,
    Hello,
    Load,
    LoadReport,
    Sampling,
    StepEvents,
    StopRules,
    Submit,
    TokenEvent,
    encode_frame,
    pack_ids,
)
from openinfer_engine import AddressRejected, EngineOptions, RemoteEngine, build_engine_info
from openinfer_testing import ZeroCostExecutor
from openinfer_testing.engine import Recorder

Request = Callable[..., Any]
TOKENS = TokenEvent(token_ids=pack_ids([1, 2]))
END = TokenEvent(end=Finished(reason="length"))


class Peer:
    """The engine's end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.heard: list[Any] = []
        self._reader = ClientFrameReader()

    async def say(self, *messages: EngineMessage) -> None:
        data = b"".join(encode_frame(message) for message in messages)
        await asyncio.get_running_loop().sock_sendall(self.sock, data)
        await asyncio.sleep(0.01)

    async def step(self, *rows: tuple[int, TokenEvent]) -> None:
        await self.say(StepEvents.from_rows(1, 0, rows))

    async def listen(self, num: int) -> list[Any]:
        while len(self.heard) < num:
            data = await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16)
            assert data, "the client hung up"
            self.heard += self._reader.feed(data)
        return self.heard


@asynccontextmanager
async def pair(**more: Any) -> AsyncIterator[tuple[RemoteEngine, Peer]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        peer = Peer(theirs)
        await peer.say(Hello(info=info()))
        engine = await RemoteEngine.connect(ours, **more)
        try:
            yield engine, peer
        finally:
            engine.disconnect()
            await asyncio.sleep(0)


def info() -> EngineInfo:
    return build_engine_info(ZeroCostExecutor().info, EngineOptions())


def test_a_stream_over_the_wire(make_request: Request) -> None:
    async def main() -> None:
        async with pair() as (engine, peer):
            recorder = Recorder("r")
            ticket = engine.submit(make_request(), recorder)
            ticket.abort()
            assert await peer.listen(3) == [
                Hello(peer="openinfer_engine.RemoteEngine"),
                Submit(0, make_request()),
                Abort((0,)),
            ]
            await peer.step((0, TOKENS))
            assert engine.num_live == 1
            await peer.step((0, END))
            assert recorder.tokens == [1, 2]
            assert isinstance(recorder.end, Finished)
            assert engine.num_live == 0
            ticket.abort()
            engine.abort(["nobody"])
            assert len(peer.heard) == 3

    asyncio.run(main())


def test_commands_loads_and_drains() -> None:
    async def main() -> None:
        async with pair() as (engine, peer):
            one, two, drained = engine.control(GetLoad()), engine.control(GetLoad()), engine.drain()
            assert (await peer.listen(4))[1:] == [
                Control(0, GetLoad()),
                Control(1, GetLoad()),
                Drain(),
            ]
            await peer.say(ControlResult(1, CommandDone(message="two")))
            assert not one.done()
            assert two.result() == CommandDone(message="two")
            await peer.say(ControlResult(0, CommandDone()), LoadReport(Load(step_id=9)), Drained())
            assert one.done()
            assert drained.result() is None
            assert engine.load().step_id == 9

    asyncio.run(main())


def test_close_asks_the_engine_to_end(make_request: Request) -> None:
    async def main() -> None:
        async with pair() as (engine, peer):
            recorder = Recorder("r")
            engine.submit(make_request(), recorder)
            engine.close()
            engine.close()
            assert isinstance(recorder.end, Failed)
            assert (await peer.listen(3))[-1] == Close()
            with pytest.raises(EngineDead, match="closed"):
                engine.submit(make_request(), recorder)

    asyncio.run(main())


def test_the_end_of_the_connection_is_the_engines_death(make_request: Request) -> None:
    async def main() -> None:
        async with pair() as (engine, peer):
            recorder, pending, drained = Recorder("r"), engine.control(GetLoad()), engine.drain()
            engine.submit(make_request(), recorder)
            peer.sock.close()
            assert "ended" in await asyncio.wait_for(engine.wait_dead(), 5)
            assert isinstance(recorder.end, Failed)
            assert recorder.end.is_retryable
            for future in (pending, drained, engine.control(GetLoad()), engine.drain()):
                assert isinstance(future.exception(0), EngineDead)
            assert engine.is_dead

    asyncio.run(main())


@pytest.mark.parametrize(
    "rows",
    [
        [(0, END), (0, TOKENS)],
        [(0, TokenEvent())],
        [(5, TOKENS)],
    ],
    ids=["after the end", "empty", "unknown stream"],
)
def test_a_breach_ends_the_connection(
    rows: list[tuple[int, TokenEvent]], make_request: Request
) -> None:
    async def main() -> None:
        async with pair() as (engine, peer):
            other = Recorder("other")
            engine.submit(make_request(), Recorder("r"))
            engine.submit(make_request(request_id="other"), other)
            for row in rows:
                await peer.step(row)
            assert "breaks the contract" in await asyncio.wait_for(engine.wait_dead(), 5)
            assert isinstance(other.end, Failed)

    asyncio.run(main())


@pytest.mark.parametrize(
    "message", [Hello(info=info()), ControlResult(4, CommandDone())], ids=["hello", "answer"]
)
def test_an_answer_nobody_asked_for_is_a_breach(message: EngineMessage) -> None:
    async def main() -> None:
        async with pair() as (engine, peer):
            await peer.say(message)
            assert "breaks the contract" in await asyncio.wait_for(engine.wait_dead(), 5)

    asyncio.run(main())


def test_a_failing_sink_costs_only_its_request(
    make_request: Request, caplog: pytest.LogCaptureFixture
) -> None:
    def sink(event: TokenEvent) -> None:
        raise RuntimeError("full")

    async def main() -> None:
        async with pair() as (engine, peer):
            other = Recorder("other")
            engine.submit(make_request(), sink)
            engine.submit(make_request(request_id="other"), other)
            await peer.step((0, TOKENS), (1, TOKENS))
            assert (await peer.listen(4))[-1] == Abort((0,))
            assert other.tokens == [1, 2]
            assert not engine.is_dead

    asyncio.run(main())
    assert "the sink of request 'r' has failed" in caplog.text


def test_what_the_engine_does_not_read_is_bounded(make_request: Request) -> None:
    async def main() -> None:
        async with pair(max_outgoing_bytes=300_000) as (engine, _):
            recorders = [Recorder(f"r{i}") for i in range(20)]
            for recorder in recorders:
                request = make_request([1] * 20_000, request_id=recorder.request_id)
                engine.submit(request, recorder)
            rejected = [recorder for recorder in recorders if recorder.end is not None]
            assert 5 < len(rejected) < 20
            for recorder in rejected:
                end = await recorder.rejected()
                assert end.kind == "overloaded"
                assert end.retry_after_s is not None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sampling": Sampling(seed=2**64)}, "sampling.seed"),
        ({"stop": StopRules(max_tokens=-(2**64))}, "stop.max_tokens"),
        ({"priority": 2**70}, ""),
        ({"tenant": "\ud800"}, ""),
    ],
)
def test_what_no_frame_can_hold_is_rejected(
    changes: dict[str, Any], field: str, make_request: Request
) -> None:
    async def main() -> None:
        async with pair() as (engine, _):
            recorder = Recorder("r")
            engine.submit(replace(make_request(), **changes), recorder)
            end = await recorder.rejected()
            assert (end.kind, end.field) == ("invalid", field)
            assert engine.num_live == 0

    asyncio.run(main())


def test_nobody_answers(tmp_path: Any) -> None:
    async def main() -> None:
        with pytest.raises(EngineDead, match="no engine answers"):
            await RemoteEngine.connect(f"unix:{tmp_path}/nobody.sock")
        with pytest.raises(AddressRejected):
            await RemoteEngine.connect("nowhere")

    asyncio.run(main())


def test_no_greeting_is_no_engine() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        with pytest.raises(EngineDead):
            await RemoteEngine.connect(ours)
        await asyncio.sleep(0)

    asyncio.run(main())
