"""KV events: after each step, publishes which cache blocks were stored and evicted."""

import logging
import time
from typing import Protocol

from openinfer_kv_cache import KVCache, KVEventBatch, KVEventsConfig, ZmqPublisher

_logger = logging.getLogger(__name__)


class Replay(Protocol):
    """Sends missed batches of KV events to subscribers on request, between steps or while idle."""

    @property
    def wait_s(self) -> float | None:
        """Seconds until `serve` must be called. None: call it when `fileno` becomes readable."""

    def fileno(self) -> int:
        """Returns the file descriptor, for a selector."""

    def serve(self) -> None:
        """Serves a few requests of subscribers, without blocking."""


class KVEventFlusher:
    """Publishes the events of one cache. Used by the step thread; call `close` at the end.

    Args:
        cache: a cache that records events.
        config: where to publish.

    Raises:
        PublisherError: pyzmq is not installed, or an endpoint cannot be used.
    """

    def __init__(self, cache: KVCache, config: KVEventsConfig) -> None:
        self._cache = cache
        self._publisher = ZmqPublisher(config)
        _logger.info(
            "KV events at %s: every client that can connect reads the token ids of all prompts",
            self._publisher.endpoint,
        )

    @property
    def replay(self) -> Replay | None:
        """The replay that the loop's host must serve; None if it is not configured."""
        return self._publisher.replay

    @property
    def num_batches(self) -> int:
        """Batches published so far."""
        return self._publisher.num_batches

    @property
    def num_dropped(self) -> int:
        """Published batches that at least one slow subscriber has lost."""
        return self._publisher.num_dropped

    def flush(self) -> None:
        """Publishes the events since the last call as one batch; nothing if there are none."""
        events = self._cache.take_events()
        if events:
            self._publisher.publish(KVEventBatch(time.time(), events, 0))

    def close(self) -> None:
        """Closes the endpoints. Idempotent."""
        publisher = self._publisher
        if publisher.num_dropped:
            _logger.warning(
                "%d of %d batches of KV events were lost to slow subscribers",
                publisher.num_dropped,
                publisher.num_batches,
            )
        publisher.close()
