"""From the cache to its subscribers: what became of blocks, once a step."""

import logging
import time
from typing import Protocol

from openinfer_kv_cache import KVCache, KVEventBatch, KVEventsConfig, ZmqPublisher

_logger = logging.getLogger(__name__)


class Replay(Protocol):
    """Answers subscribers that missed batches, between steps and while the engine is idle."""

    @property
    def wait_s(self) -> float | None:
        """Seconds until `serve` is to be called anyway; None: when it is readable."""

    def fileno(self) -> int:
        """For a selector."""

    def serve(self) -> None:
        """Does a little work; never blocks."""


class KVEventFlusher:
    """Publishes the events of one cache. For the step thread; close it.

    Args:
        cache: made with events.
        config: where to.

    Raises:
        PublisherError: pyzmq is missing, or an endpoint cannot be used.
    """

    def __init__(self, cache: KVCache, config: KVEventsConfig) -> None:
        self._cache = cache
        self._publisher = ZmqPublisher(config)
        _logger.info(
            "KV events at %s: whoever can connect reads the token ids of all prompts",
            self._publisher.endpoint,
        )

    @property
    def replay(self) -> Replay | None:
        """For the host of the loop to serve; None if nobody can ask."""
        return self._publisher.replay

    @property
    def num_batches(self) -> int:
        """Batches published so far."""
        return self._publisher.num_batches

    @property
    def num_dropped(self) -> int:
        """Of those, the ones that at least one subscriber was too slow for."""
        return self._publisher.num_dropped

    def flush(self) -> None:
        """Publishes what has happened since the last call, if anything has."""
        events = self._cache.take_events()
        if events:
            self._publisher.publish(KVEventBatch(time.time(), events, 0))

    def close(self) -> None:
        """Gives the endpoints back. Idempotent."""
        publisher = self._publisher
        if publisher.num_dropped:
            _logger.warning(
                "%d of %d batches of KV events were lost to slow subscribers",
                publisher.num_dropped,
                publisher.num_batches,
            )
        publisher.close()
