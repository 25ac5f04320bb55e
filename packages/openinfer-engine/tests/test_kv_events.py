"""KV events over a real socket: a subscriber follows a loop, and hosts serve replay."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from openinfer_contract import EventBuffer, ResetPrefixCache
from openinfer_engine import EngineLoop, EngineOptions, InProcessEngine, assemble
from openinfer_kv_cache import (
    AllBlocksCleared,
    BlockStored,
    KVEvent,
    KVEventBatch,
    KVEventsConfig,
    PublisherError,
)
from openinfer_testing import ZeroCostExecutor
from openinfer_testing.engine import Recorder

Request = Callable[..., Any]
PROMPT = list(range(1, 41))


class Subscriber:
    """A subscriber's two sockets."""

    def __init__(self, folder: Path) -> None:
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.subscribe(b"")
        self.live.connect(f"ipc://{folder}/pub")
        self.asking = self.context.socket(zmq.DEALER)
        self.asking.connect(f"ipc://{folder}/replay")

    def ask(self, start: int) -> None:
        self.asking.send_multipart([b"", start.to_bytes(8, "big")])

    def answer(self, timeout_ms: int = 5000) -> list[KVEvent]:
        """Returns all replayed messages up to the end marker."""
        events: list[KVEvent] = []
        while self.asking.poll(timeout_ms):
            _, number, payload = self.asking.recv_multipart()
            if number == b"\xff" * 8:
                return events
            events += KVEventBatch.decode(payload).events
        raise AssertionError("no end of the replay")

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def subscriber(tmp_path: Path) -> Iterator[Subscriber]:
    subscriber = Subscriber(tmp_path)
    yield subscriber
    subscriber.close()


@pytest.fixture
def options(tmp_path: Path) -> EngineOptions:
    config = KVEventsConfig(
        enable_kv_cache_events=True,
        endpoint=f"ipc://{tmp_path}/pub",
        replay_endpoint=f"ipc://{tmp_path}/replay",
    )
    return EngineOptions(kv_events_config=config)


def generate(loop: EngineLoop, request: Any) -> None:
    loop.submit(request, Recorder(request.request_id))
    while loop.has_work:
        loop.step()


def replayed(loop: EngineLoop, subscriber: Subscriber, start: int = 0) -> list[KVEvent]:
    subscriber.ask(start)
    assert loop.replay is not None
    while not subscriber.asking.poll(10):
        loop.replay.serve()
    while loop.replay.wait_s is not None:
        loop.replay.serve()
    return subscriber.answer()


def test_a_shared_prefix_is_stored_once(
    options: EngineOptions, subscriber: Subscriber, make_request: Request
) -> None:
    loop = assemble(ZeroCostExecutor(), options)
    generate(loop, make_request(PROMPT, request_id="a", max_tokens=30))
    generate(loop, make_request(PROMPT, request_id="b", max_tokens=2))
    events = replayed(loop, subscriber)
    assert all(isinstance(event, BlockStored) for event in events)
    tokens = [t for event in events if isinstance(event, BlockStored) for t in event.token_ids]
    assert tokens == list(range(1, 65)), "prompt and output, full blocks, once"
    loop.control(ResetPrefixCache(), lambda _: None)
    loop.step()
    assert replayed(loop, subscriber, len(events)) == [AllBlocksCleared()]
    loop.close()


def test_live_batches_are_out_before_the_step_returns(
    options: EngineOptions, subscriber: Subscriber, make_request: Request
) -> None:
    loop = assemble(ZeroCostExecutor(), options)
    for number in range(1000):
        request = make_request([number, *PROMPT], request_id=str(number), max_tokens=1)
        generate(loop, request)
        if subscriber.live.poll(10):
            break
    topic, _, payload = subscriber.live.recv_multipart()
    assert topic == b""
    batch = KVEventBatch.decode(payload)
    assert abs(batch.ts - time.time()) < 60
    assert batch.data_parallel_rank == 0
    load = loop.load()
    assert load.num_kv_event_batches == number + 1
    assert load.num_dropped_kv_event_batches == 0
    loop.close()


def test_an_idle_engine_in_this_process_answers(
    options: EngineOptions, subscriber: Subscriber, make_request: Request
) -> None:
    engine = InProcessEngine(ZeroCostExecutor, options)
    buffer = EventBuffer()
    engine.submit(make_request(PROMPT, max_tokens=1), buffer)
    while buffer.get_blocking(10).end is None:
        pass
    time.sleep(0.2)
    subscriber.ask(0)
    (stored,) = subscriber.answer()
    assert isinstance(stored, BlockStored)
    assert stored.token_ids == PROMPT[:32]
    engine.close()


def test_closing_gives_the_endpoint_back(options: EngineOptions) -> None:
    for _ in range(2):
        loop = assemble(ZeroCostExecutor(), options)
        loop.close()
        loop.close()


def test_an_endpoint_in_use_is_a_failed_start() -> None:
    class Closing(ZeroCostExecutor):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    context = zmq.Context()
    taken = context.socket(zmq.PUB)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    config = KVEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://*:{port}")
    executor = Closing()
    with pytest.raises(PublisherError, match=r"endpoint .* in use"):
        assemble(executor, EngineOptions(kv_events_config=config))
    assert executor.is_closed
    context.destroy(linger=0)


def test_without_events_nothing_is_kept(make_request: Request) -> None:
    for config in (None, KVEventsConfig(enable_kv_cache_events=True, publisher="null")):
        loop = assemble(ZeroCostExecutor(), EngineOptions(kv_events_config=config))
        generate(loop, make_request(PROMPT))
        assert loop.replay is None
        loop.close()


def test_events_of_nothing_are_refused() -> None:
    raw = {"kv_events_config": {"enable_kv_cache_events": True}, "enable_prefix_caching": False}
    with pytest.raises(msgspec.ValidationError, match="kv_events_config: without prefix caching"):
        msgspec.convert(raw, EngineOptions)
    raw["kv_events_config"] = {"enable_kv_cache_events": False}
    assert not msgspec.convert(raw, EngineOptions).is_publishing_kv_events
