"""Publishing batches of events over ZeroMQ, in vLLM's format.

A PUB socket sends `[topic, sequence number, batch]`; the number is 8 bytes, big-endian, and counts
up from 0. A subscriber that missed batches sends `[empty, first number wanted (8 bytes)]` to the
ROUTER socket. The reply is `[empty, number, batch]` for each batch that is kept, then number -1
with an empty batch.

All calls come from the step thread and never block: a socket passes messages to a native thread.
Batches that a slow subscriber has no room for are dropped and counted.
"""

import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from openinfer_kv_cache.errors import PublisherError
from openinfer_kv_cache.events._batch import KVEventBatch
from openinfer_kv_cache.events._config import KVEventsConfig

if TYPE_CHECKING:
    import zmq

_END = (-1).to_bytes(8, "big", signed=True)
_BATCHES_AT_ONCE = 64
_STALLED_WAIT_S = 0.01
_STALL_TIMEOUT_S = 5.0

_Kept = deque[tuple[int, bytes]]


class ZmqPublisher:
    """Publisher of one engine's batches. Use it from one thread, and close it.

    Args:
        config: endpoints and limits; `config.is_publishing` is true.

    Raises:
        PublisherError: pyzmq is missing, or an endpoint cannot be used.

    Attributes:
        endpoint: address of the PUB socket, with a wildcard port resolved.
        replay: serves subscribers that missed batches; None without a `replay_endpoint`.
        num_batches: number of batches published so far, and the sequence number of the next one.
        num_dropped: number of batches that at least one subscriber did not get.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        config.check_installed()
        import zmq

        self._zmq = zmq
        self._topic = config.topic.encode()
        self._kept: _Kept = deque(maxlen=config.buffer_steps)
        self._context = zmq.Context()
        self.replay: ReplayServer | None = None
        self.num_batches = 0
        self.num_dropped = 0
        try:
            self._socket = self._context.socket(zmq.PUB)
            self._socket.set_hwm(config.hwm)
            self._socket.setsockopt(zmq.XPUB_NODROP, 1)
            is_bound = _names_every_interface(config.endpoint)
            self._open(self._socket, "endpoint", config.endpoint, is_bound=is_bound)
            self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
            if config.replay_endpoint is not None:
                router = self._context.socket(zmq.ROUTER)
                router.setsockopt(zmq.ROUTER_MANDATORY, 1)
                self._open(router, "replay_endpoint", config.replay_endpoint, is_bound=True)
                self.replay = ReplayServer(router, self._kept)
        except BaseException:
            self.close()
            raise

    def publish(self, batch: KVEventBatch) -> None:
        """Sends a batch to every subscriber that has room for it."""
        zmq = self._zmq
        number, payload = self.num_batches, batch.encode()
        frames = (self._topic, number.to_bytes(8, "big"), payload)
        self.num_batches += 1
        if self.replay is not None:
            self._kept.append((number, payload))
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            # At least one subscriber has no room: send to all others.
            self.num_dropped += 1
            self._socket.setsockopt(zmq.XPUB_NODROP, 0)
            self._socket.send_multipart(frames, zmq.NOBLOCK)
            self._socket.setsockopt(zmq.XPUB_NODROP, 1)

    def close(self) -> None:
        """Closes the endpoints; batches not yet received are lost. Idempotent."""
        self._context.destroy(linger=0)

    def _open(self, socket: "zmq.Socket[bytes]", key: str, address: str, *, is_bound: bool) -> None:
        if ":" in address.removeprefix("tcp://").rpartition(":")[0]:
            socket.setsockopt(self._zmq.IPV6, 1)
        try:
            if is_bound:
                socket.bind(address)
            else:
                socket.connect(address)
        except self._zmq.ZMQError as error:
            raise PublisherError(
                f"{key} {address!r} of the KV events cannot be used: "
                f"{self._zmq.strerror(error.errno or 0)}"
            ) from error


class ReplayServer:
    """Replays missed batches to one subscriber at a time, at most 64 batches a call.

    The bound keeps a call short, so that no step waits for it. Register it with a selector, and
    call `serve` when it is readable and after `wait_s`.
    """

    def __init__(self, router: "zmq.Socket[bytes]", kept: _Kept) -> None:
        import zmq

        self._zmq = zmq
        self._router = router
        self._kept = kept
        self._subscriber: bytes | None = None
        self._next = 0
        self._stalled_at: float | None = None
        self._has_more = False

    def fileno(self) -> int:
        """Returns a descriptor that is readable when a replay may be asked for. Edge-triggered."""
        return int(self._router.getsockopt(self._zmq.FD))

    @property
    def wait_s(self) -> float | None:
        """Seconds until `serve` should be called; None if only when it becomes readable."""
        if self._stalled_at is not None:
            return _STALLED_WAIT_S
        return 0.0 if self._has_more else None

    def serve(self) -> None:
        """Sends some of the requested batches. Never blocks, and never raises because of a peer."""
        num_left = _BATCHES_AT_ONCE
        while num_left:
            if self._subscriber is not None:
                num_left -= self._send_batches(num_left)
                if self._stalled_at is not None:
                    return
            elif int(self._router.getsockopt(self._zmq.EVENTS)) & self._zmq.POLLIN:
                self._read_request()
                num_left -= 1
            else:
                self._has_more = False
                return
        self._has_more = True

    def _read_request(self) -> None:
        """Reads the next replay request; ignores malformed messages."""
        subscriber, *frames = self._router.recv_multipart(self._zmq.NOBLOCK)
        if len(frames) == 2 and not frames[0] and len(frames[1]) == len(_END):
            self._subscriber = subscriber
            self._next = int.from_bytes(frames[1], "big")

    def _send_batches(self, num: int) -> int:
        """Sends up to `num` messages, the end marker included, and returns how many were sent."""
        kept, subscriber = self._kept, self._subscriber
        assert subscriber is not None
        first = kept[0][0] if kept else 0
        start = max(0, self._next - first)
        num_sent = 0
        try:
            for number, payload in islice(kept, start, start + num):
                self._send(subscriber, number.to_bytes(8, "big"), payload)
                self._next = number + 1
                num_sent += 1
            if num_sent < num:
                self._send(subscriber, _END, b"")
                num_sent += 1
                self._subscriber = None
            self._stalled_at = None
        except self._zmq.Again:
            now = time.monotonic()
            if num_sent or self._stalled_at is None:
                self._stalled_at = now
            elif now - self._stalled_at > _STALL_TIMEOUT_S:
                self._subscriber = self._stalled_at = None
        except self._zmq.ZMQError:
            # The subscriber has disconnected.
            self._subscriber = self._stalled_at = None
        return num_sent

    def _send(self, subscriber: bytes, number: bytes, payload: bytes) -> None:
        self._router.send_multipart((subscriber, b"", number, payload), self._zmq.NOBLOCK)


def _names_every_interface(endpoint: str) -> bool:
    """Returns whether an endpoint is bound rather than connected to, by vLLM's rule."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")
