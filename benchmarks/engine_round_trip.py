"""Measures the engine's own cost: time from submit to first event, and tokens per second.

    python benchmarks/engine_round_trip.py

The executor counts instead of computing (`openinfer_testing.zero_cost_executor`). The time is that
of the engine: encode, socket, decode, check, admit, plan, settle, deliver, socket, dispatch.
"""

import argparse
import asyncio
import itertools
import statistics
import time
from contextlib import AsyncExitStack

from openinfer_contract import (
    EngineHandle,
    GenerateRequest,
    Sampling,
    StopRules,
    TokenEvent,
    pack_ids,
)
from openinfer_engine import EngineChild, InProcessEngine, LaunchSpec, ProcessSpec, RemoteEngine
from openinfer_testing import CountingShape, ZeroCostExecutor

_ids = itertools.count()
_SHAPE = CountingShape(max_num_seqs=64, num_blocks=4096)


def _request(num_prompt_tokens: int, max_tokens: int) -> GenerateRequest:
    start = next(_ids)
    return GenerateRequest(
        request_id=f"r{start}",
        prompt_token_ids=pack_ids((start * 31 + i) % 900 for i in range(num_prompt_tokens)),
        sampling=Sampling(temperature=0.0),
        stop=StopRules(max_tokens=max_tokens, ignore_eos=True),
    )


async def _first_event_us(engine: EngineHandle, request: GenerateRequest) -> float:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[float] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()

    def on_loop(event: TokenEvent, at: float) -> None:
        if not first.done():
            first.set_result(at)
        if event.end is not None:
            ended.set_result(None)

    def sink(event: TokenEvent, /) -> None:
        loop.call_soon_threadsafe(on_loop, event, time.perf_counter())

    begin = time.perf_counter()
    engine.submit(request, sink)
    at = await first
    await ended
    return (at - begin) * 1e6


async def _tokens_per_s(engine: EngineHandle, num_streams: int, max_tokens: int) -> float:
    loop = asyncio.get_running_loop()
    all_ended: asyncio.Future[None] = loop.create_future()
    num_live = num_streams

    def on_end() -> None:
        nonlocal num_live
        num_live -= 1
        if not num_live:
            all_ended.set_result(None)

    def sink(event: TokenEvent, /) -> None:
        if event.end is not None:
            loop.call_soon_threadsafe(on_end)

    begin = time.perf_counter()
    for _ in range(num_streams):
        engine.submit(_request(32, max_tokens), sink)
    await all_ended
    return num_streams * max_tokens / (time.perf_counter() - begin)


async def _measure(name: str, engine: EngineHandle, num_rounds: int) -> None:
    for _ in range(50):
        await _first_event_us(engine, _request(32, 2))
    line = f"{name:12}"
    for num_tokens in (32, 1000):
        samples = [
            await _first_event_us(engine, _request(num_tokens, 2)) for _ in range(num_rounds)
        ]
        p50, p99 = statistics.median(samples), statistics.quantiles(samples, n=100)[98]
        line += f"  {num_tokens:4} tokens p50 {p50:5.0f} us p99 {p99:6.0f} us"
    for num_streams in (1, 64):
        line += f"  x{num_streams} {await _tokens_per_s(engine, num_streams, 500):7.0f} tok/s"
    print(line)


async def main() -> None:
    """Measures each implementation of `EngineHandle`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    shape = {name: getattr(_SHAPE, name) for name in _SHAPE.__struct_fields__}
    spec = ProcessSpec(
        launch=LaunchSpec(model_path="", model_line="counting", line_options=shape),
        factory="openinfer_testing:zero_cost_executor",
    )
    async with AsyncExitStack() as stack:
        local = InProcessEngine(lambda: ZeroCostExecutor(_SHAPE))
        stack.callback(local.close)
        await _measure("in process", local, rounds)
        child = await EngineChild.start(spec, listen=["tcp:127.0.0.1:0"])
        stack.push_async_callback(child.stop, 10.0)
        await _measure("socketpair", child.engine, rounds)
        remote = await RemoteEngine.connect(child.addresses[0])
        stack.callback(remote.disconnect)
        await _measure("tcp", remote, rounds)


if __name__ == "__main__":
    asyncio.run(main())
