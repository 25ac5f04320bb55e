"""A subscriber rebuilds a real server's cache: live, after a gap, and after its own restart."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import zmq

from openinfer_kv_cache import BlockRemoved, BlockStored, KVEventBatch

BLOCK = 16
END = b"\xff" * 8


class Subscriber:
    """A subscriber of one engine. Holds the tokens of every block by hash."""

    def __init__(self, folder: Path, hwm: int = 1000) -> None:
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.set_hwm(hwm)
        self.live.subscribe(b"kv@")
        self.live.connect(f"ipc://{folder}/pub")
        self.asking = self.context.socket(zmq.DEALER)
        self.asking.connect(f"ipc://{folder}/replay")
        self.blocks: dict[int, tuple[int, ...]] = {}
        self.next = 0
        self.num_gaps = 0

    def close(self) -> None:
        self.context.destroy(linger=0)

    def read(self, timeout_s: float = 0.3) -> None:
        """Reads until no event arrives for a while, and requests the events that it missed."""
        while self.live.poll(timeout_s * 1000):
            topic, number, payload = self.live.recv_multipart()
            assert topic == b"kv@tiny"
            found = int.from_bytes(number, "big")
            if found > self.next:
                self.num_gaps += 1
                self.catch_up()
            self.take(found, payload)

    def catch_up(self) -> None:
        self.asking.send_multipart([b"", self.next.to_bytes(8, "big")])
        while self.asking.poll(5000):
            _, number, payload = self.asking.recv_multipart()
            if number == END:
                return
            self.take(int.from_bytes(number, "big"), payload)
        raise AssertionError("the replay has no end")

    def take(self, number: int, payload: bytes) -> None:
        if number < self.next:
            return
        assert number == self.next, "a batch is missing"
        self.next += 1
        for event in KVEventBatch.decode(payload).events:
            if isinstance(event, BlockStored):
                self.store(event)
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    del self.blocks[block]
            else:
                self.blocks.clear()

    def store(self, event: BlockStored) -> None:
        parent = event.parent_block_hash
        tokens = () if parent is None else self.blocks[parent]
        for i, block in enumerate(event.block_hashes):
            tokens += tuple(event.token_ids[i * BLOCK : (i + 1) * BLOCK])
            self.blocks[block] = tokens


@pytest.fixture
def subscribe(tmp_path):
    subscribers = []

    def make(**options):
        subscribers.append(Subscriber(tmp_path, **options))
        return subscribers[-1]

    yield make
    for subscriber in subscribers:
        subscriber.close()


def prefixes(*sequences):
    """Returns every prefix of full blocks of these sequences: the expected content of the cache."""
    return {tuple(s[:end]) for s in sequences for end in range(BLOCK, len(s) + 1, BLOCK)}


def complete(server, prompt, max_tokens=24):
    """Returns the ids that are cached after the request, and the number of prompt ids hit."""
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
    }
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    output = answer["choices"][0]["token_ids"]
    details = answer["usage"].get("prompt_tokens_details") or {}
    return [*prompt, *output][:-1], details.get("cached_tokens", 0)


def test_a_subscriber_rebuilds_the_cache(start_server, subscribe, tmp_path):
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{tmp_path}/pub",
        "replay_endpoint": f"ipc://{tmp_path}/replay",
        "topic": "kv@tiny",
        "buffer_steps": 1000,
        "hwm": 1000,
    }
    server = start_server(
        "--kv-events-config", json.dumps(config), "--kv-cache-memory-bytes", "4M", "--dtype", "bf16"
    )
    rng = np.random.default_rng(7)
    prefix = rng.integers(10, 200, 70).tolist()
    first, _ = complete(server, [*prefix, *rng.integers(10, 200, 30).tolist()])
    second, num_hit = complete(server, [*prefix, *rng.integers(10, 200, 30).tolist()])
    assert num_hit == 64

    late = subscribe()
    late.catch_up()  # an idle engine wakes up for it
    assert set(late.blocks.values()) == prefixes(first, second)

    gone, stays = subscribe(), subscribe()
    for subscriber in (late, gone, stays):
        while not subscriber.live.poll(20):
            complete(server, rng.integers(10, 200, 20).tolist(), max_tokens=1)
    gone.close()
    third, num_hit = complete(server, [*prefix[:40], *rng.integers(10, 200, 9).tolist()])
    assert num_hit == 32
    for subscriber in (late, stays):
        subscriber.read()
    assert stays.num_gaps == 1, "it came late and asked for the rest"
    assert stays.blocks == late.blocks
    assert prefixes(first, second, third) <= set(stays.blocks.values())

    num_blocks = server.load()["num_total_blocks"]
    for _ in range(2 * num_blocks // (400 // BLOCK)):
        complete(server, rng.integers(10, 200, 400).tolist(), max_tokens=1)
    kept, num_hit = complete(server, [*prefix, 5, 6, 7], max_tokens=20)
    assert num_hit == 0, "evicted by now"
    stays.read()
    load = server.load()
    assert len(stays.blocks) == load["num_evictable_blocks"]
    assert len(set(stays.blocks.values())) == len(stays.blocks) <= num_blocks
    assert prefixes(kept) <= set(stays.blocks.values())

    status, _ = server.post("/reset_prefix_cache", {})
    assert status == 200
    stays.read()
    assert stays.blocks == {}


def test_a_subscriber_that_does_not_read_stalls_nobody(start_server, subscribe, tmp_path):
    config = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{tmp_path}/pub",
        "replay_endpoint": f"ipc://{tmp_path}/replay",
        "topic": "kv@tiny",
        "hwm": 1,
    }
    server = start_server("--kv-events-config", json.dumps(config))
    lazy = subscribe(hwm=1)
    started = time.monotonic()
    for i in range(60):
        complete(server, list(range(10 + i, 110 + i)), max_tokens=1)
    assert time.monotonic() - started < 60
    lazy.catch_up()
    assert lazy.next == 60, "nothing is lost that can be asked for"


def test_nonsense_is_refused_before_anything_is_loaded(call_openinfer):
    for value, words in [
        ("{", "not JSON"),
        ('{"enable_kv_cache_events": true, "port": 5557}', "unknown field `port`"),
        ('{"enable_kv_cache_events": true, "publisher": "nats"}', "publisher"),
    ]:
        status, _, stderr = call_openinfer("serve", "--kv-events-config", value)
        assert status != 0
        assert words in stderr, stderr
