"""The publisher against real sockets: order, numbers, topics, slow readers, replay."""

import select
import time

import msgspec
import pytest
import zmq

from openinfer_kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    KVEventBatch,
    KVEventsConfig,
    PublisherError,
    ZmqPublisher,
)
from openinfer_kv_cache.events import _config

END = b"\xff" * 8


class KeepingContext(zmq.Context):
    """A context that keeps its sockets, so that they are closed and not garbage-collected."""

    def socket(self, kind):
        self.__dict__.setdefault("opened", []).append(opened := super().socket(kind))
        return opened


def batch(number, size=1):
    return KVEventBatch(float(number), [BlockRemoved([number] * size, "GPU", 0)], 0)


@pytest.fixture
def context():
    context = KeepingContext()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def publish(tmp_path):
    """Returns a function that makes a publisher with the given settings; its endpoints are
    files."""
    publishers = []

    def make(**settings):
        settings = {"endpoint": f"ipc://{tmp_path}/pub", **settings}
        config = KVEventsConfig(enable_kv_cache_events=True, **settings)
        publishers.append(ZmqPublisher(config))
        return publishers[-1]

    yield make
    for publisher in publishers:
        publisher.close()


def subscribe(context, publisher, endpoint, topic=b"", hwm=None):
    """Returns a subscriber whose subscription the publisher has received."""
    socket = context.socket(zmq.SUB)
    if hwm is not None:
        socket.set_hwm(hwm)
    socket.subscribe(topic)
    socket.connect(endpoint)
    while not socket.poll(20):
        publisher.publish(KVEventBatch(0.0, [AllBlocksCleared()], 0))
    while socket.poll(50):
        socket.recv_multipart()
    return socket


def ask(context, endpoint, start):
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    return socket


def answers(publisher, socket, timeout_s=5.0):
    """Serves and reads until the end marker."""
    found, deadline = [], time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        publisher.replay.serve()
        while socket.poll(5):
            empty, number, payload = socket.recv_multipart()
            assert empty == b""
            if number == END:
                assert payload == b""
                return found
            found.append((int.from_bytes(number, "big"), KVEventBatch.decode(payload)))
    raise AssertionError("no end of the replay")


def test_a_message_has_three_frames(publish, context, tmp_path):
    publisher = publish(topic="kv@one")
    socket = subscribe(context, publisher, f"ipc://{tmp_path}/pub", topic=b"kv@")
    number = publisher.num_batches
    publisher.publish(batch(7))
    publisher.publish(batch(8))
    frames = [socket.recv_multipart() for _ in range(2)]
    assert [f[0] for f in frames] == [b"kv@one"] * 2
    assert [int.from_bytes(f[1], "big") for f in frames] == [number, number + 1]
    assert [len(f[1]) for f in frames] == [8, 8]
    assert [KVEventBatch.decode(f[2]) for f in frames] == [batch(7), batch(8)]
    assert publisher.num_dropped == 0


def test_another_topic_is_not_sent(publish, context, tmp_path):
    publisher = publish(topic="kv@one")
    socket = subscribe(context, publisher, f"ipc://{tmp_path}/pub", topic=b"kv@one")
    other = context.socket(zmq.SUB)
    other.subscribe(b"kv@two")
    other.connect(f"ipc://{tmp_path}/pub")
    publisher.publish(batch(1))
    assert socket.poll(1000)
    assert not other.poll(100)


def test_tcp_is_bound_by_a_star_and_connected_otherwise(context):
    collector = context.socket(zmq.SUB)
    collector.subscribe(b"")
    port = collector.bind_to_random_port("tcp://127.0.0.1")
    config = KVEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://127.0.0.1:{port}")
    publisher = ZmqPublisher(config)
    while not collector.poll(20):
        publisher.publish(batch(1))
    publisher.close()
    publisher = ZmqPublisher(KVEventsConfig(enable_kv_cache_events=True, endpoint="tcp://*:*"))
    port = publisher.endpoint.rpartition(":")[2]
    subscribe(context, publisher, f"tcp://127.0.0.1:{port}")
    publisher.close()


@pytest.mark.timed
def test_a_slow_subscriber_does_not_affect_others(publish, context, tmp_path):
    publisher = publish(hwm=4)
    endpoint = f"ipc://{tmp_path}/pub"
    slow = subscribe(context, publisher, endpoint, hwm=4)
    start, longest = publisher.num_batches, 0.0
    for number in range(200):
        before = time.perf_counter()
        publisher.publish(batch(number, size=50_000))
        longest = max(longest, time.perf_counter() - before)
    assert longest < 0.5, "a full socket made the step thread wait"
    dropped = publisher.num_dropped
    assert 0 < dropped < 200
    fast = subscribe(context, publisher, endpoint)
    at_hand = []
    publisher.publish(batch(999))
    while fast.poll(1000):
        at_hand.append(int.from_bytes(fast.recv_multipart()[1], "big"))
        if at_hand[-1] == publisher.num_batches - 1:
            break
    assert at_hand[-1] == publisher.num_batches - 1, "a slow neighbour kept it from the others"
    seen = []
    while slow.poll(200):
        seen.append(int.from_bytes(slow.recv_multipart()[1], "big"))
    assert seen == sorted(seen)
    assert len([number for number in seen if number >= start]) < 200, "the gap can be seen"


def test_publishing_without_subscribers(publish):
    publisher = publish(hwm=1)
    for number in range(100):
        publisher.publish(batch(number))
    assert (publisher.num_batches, publisher.num_dropped) == (100, 0)


def test_replay_from_a_number(publish, context, tmp_path):
    publisher = publish(replay_endpoint=f"ipc://{tmp_path}/replay")
    for number in range(200):
        publisher.publish(batch(number))
    socket = ask(context, f"ipc://{tmp_path}/replay", 5)
    assert answers(publisher, socket) == [(n, batch(n)) for n in range(5, 200)]
    socket.send_multipart([b"", (200).to_bytes(8, "big")])
    assert answers(publisher, socket) == []
    assert publisher.replay.wait_s is None


def test_replay_has_what_is_kept(publish, context, tmp_path):
    publisher = publish(replay_endpoint=f"ipc://{tmp_path}/replay", buffer_steps=10)
    socket = ask(context, f"ipc://{tmp_path}/replay", 0)
    assert answers(publisher, socket) == []
    for number in range(25):
        publisher.publish(batch(number))
    socket.send_multipart([b"", bytes(8)])
    assert [number for number, _ in answers(publisher, socket)] == [*range(15, 25)]


def test_replay_is_sent_in_portions_and_wakes_the_selector(publish, context, tmp_path):
    publisher = publish(replay_endpoint=f"ipc://{tmp_path}/replay")
    replay = publisher.replay
    replay.serve()
    for number in range(500):
        publisher.publish(batch(number))
    socket = ask(context, f"ipc://{tmp_path}/replay", 0)
    while replay.wait_s is None:
        readable, _, _ = select.select([replay], [], [], 5.0)
        assert readable, "a question wakes the engine"
        replay.serve()
    num_calls = 1
    while replay.wait_s is not None:
        replay.serve()
        num_calls += 1
        assert num_calls < 1000
    assert num_calls > 500 // 64
    assert len(answers(publisher, socket)) == 500


def test_several_subscribers_ask_for_replay(publish, context, tmp_path):
    publisher = publish(replay_endpoint=f"ipc://{tmp_path}/replay")
    for number in range(100):
        publisher.publish(batch(number))
    sockets = [ask(context, f"ipc://{tmp_path}/replay", start) for start in (0, 50, 99)]
    assert [len(answers(publisher, socket)) for socket in sockets] == [100, 50, 1]


def test_malformed_requests_and_disconnected_subscribers_do_no_harm(publish, context, tmp_path):
    publisher = publish(replay_endpoint=f"ipc://{tmp_path}/replay")
    for number in range(3000):
        publisher.publish(batch(number, size=2000))
    rude = context.socket(zmq.DEALER)
    rude.connect(f"ipc://{tmp_path}/replay")
    for frames in ([b"x"], [b"", b"x"], [b"x", bytes(8)], [b"", bytes(8), b""], [b"", b""]):
        rude.send_multipart(frames)
    gone = ask(context, f"ipc://{tmp_path}/replay", 0)
    while publisher.replay.wait_s is None:
        publisher.replay.serve()
    gone.close(linger=0)
    socket = ask(context, f"ipc://{tmp_path}/replay", 2999)
    assert [number for number, _ in answers(publisher, socket)] == [2999]
    assert not rude.poll(50)


def test_a_replay_to_a_subscriber_that_does_not_read_is_dropped(
    publish, context, tmp_path, monkeypatch
):
    monkeypatch.setattr("openinfer_kv_cache.events._zmq._STALL_TIMEOUT_S", 0.2)
    publisher = publish(replay_endpoint=f"ipc://{tmp_path}/replay")
    for number in range(3000):
        publisher.publish(batch(number, size=2000))
    lazy = context.socket(zmq.DEALER)
    lazy.set_hwm(1)
    lazy.connect(f"ipc://{tmp_path}/replay")
    lazy.send_multipart([b"", bytes(8)])
    stalled = 0
    deadline = time.monotonic() + 5
    while publisher.replay.wait_s is None or publisher.replay.wait_s == 0.0:
        publisher.replay.serve()
        assert time.monotonic() < deadline
    while publisher.replay.wait_s is not None:
        stalled += publisher.replay.wait_s > 0
        publisher.replay.serve()
        time.sleep(0.01)
        assert time.monotonic() < deadline
    assert stalled > 5
    socket = ask(context, f"ipc://{tmp_path}/replay", 2990)
    assert len(answers(publisher, socket)) == 10


@pytest.mark.parametrize("key", ["endpoint", "replay_endpoint"])
def test_an_address_in_use_is_named(publish, context, key):
    taken = context.socket(zmq.PUB)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    with pytest.raises(PublisherError, match=f"^{key} .*:{port}.* in use$"):
        publish(**{key: f"tcp://*:{port}"})


def test_a_missing_library_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(_config, "find_spec", lambda name: None)
    with pytest.raises(PublisherError, match=r'pip install "openinfer-kv-cache\[events\]"'):
        ZmqPublisher(KVEventsConfig(enable_kv_cache_events=True))
    KVEventsConfig(enable_kv_cache_events=True, publisher="null").check_installed()
    KVEventsConfig().check_installed()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"buffer_steps": 0}, "buffer_steps"),
        ({"hwm": -1}, "hwm"),
        ({"endpoint": "5557"}, "endpoint '5557'"),
        ({"replay_endpoint": "here"}, "replay_endpoint 'here'"),
        ({"endpoint": "tcp://*:70000"}, "endpoint 'tcp://\\*:70000': a port is at most 65535"),
        ({"endpoint": "inproc://x"}, "endpoint 'inproc://x'"),
        ({"max_queue_size": 5}, "max_queue_size: .* use hwm"),
        ({"publisher": "nats"}, "publisher"),
        ({"topics": "x"}, "unknown field `topics`"),
        ({"hwm": "many"}, "hwm"),
    ],
)
def test_each_key_is_consumed_or_refused(settings, reason):
    with pytest.raises(msgspec.ValidationError, match=reason):
        msgspec.convert(settings, KVEventsConfig)


def test_is_publishing_follows_the_options():
    assert not KVEventsConfig().is_publishing
    assert not KVEventsConfig(publisher="zmq").is_publishing
    assert KVEventsConfig(enable_kv_cache_events=True).is_publishing
    assert not KVEventsConfig(enable_kv_cache_events=True, publisher="null").is_publishing
