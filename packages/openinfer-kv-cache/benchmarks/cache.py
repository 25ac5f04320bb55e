"""Figures of the README: keys, hits, a decode step, a large pool. Best of five, one core."""

import itertools
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from openinfer_kv_cache import (
    EVICTION_POLICIES,
    BlockPool,
    CacheGroup,
    EvictionPolicy,
    KVCache,
    KVEventBatch,
    Plane,
)

GROUP = CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=1),))
PROMPT = np.random.default_rng(0).integers(0, 150_000, 100_000, dtype=np.uint32)


def main() -> None:
    """Print one line a figure."""
    print(f"pool of 1M blocks, start            {best(lambda: BlockPool(1_000_000)):9.1f} us")
    print(f"keys of 100k tokens                 {best(hash_prompt):9.1f} us")
    cache = filled_cache()
    keys = cache.keys(PROMPT)
    keys.slice(0, keys.num_blocks)

    def hit() -> None:
        cache.match(keys).close()

    def admit() -> None:
        cache.open(keys, cache.match(keys)).close(in_flight_until=None)

    print(f"match and close, 6,249 blocks       {best(hit):9.1f} us")
    print(f"match, open, close, 6,249 blocks    {best(admit):9.1f} us")
    for name, make in EVICTION_POLICIES.items():
        print(f"fill, close, evict 6,250 by {name:8}{best(turn_over(make)):9.1f} us")
    print(f"the same by lru, with events sent   {best(turn_over(None, has_events=True)):9.1f} us")
    decode()


def best(function: Callable[[], object]) -> float:
    """Microseconds of the fastest of five runs."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def turn_over(
    make: Callable[[Callable[[], float]], EvictionPolicy] | None, *, has_events: bool = False
) -> Callable[[], None]:
    """A prompt takes the place of another one, of which every block is evicted."""
    cache = KVCache(
        (GROUP,),
        num_blocks=6_250,
        has_events=has_events,
        eviction=None if make is None else partial(make, time.monotonic),
    )
    numbers = itertools.count()

    def run() -> None:
        number = next(numbers)
        cache.begin_step(number)
        sequence = cache.open(cache.keys(PROMPT + np.uint32(number)))
        assert sequence.try_schedule(len(PROMPT)) is not None
        cache.complete_step(number)
        sequence.close(in_flight_until=None)
        if has_events:
            KVEventBatch(0.0, cache.take_events(), 0).encode()

    run()
    return run


def hash_prompt() -> None:
    """Key every block of the prompt."""
    keys = KVCache((GROUP,), num_blocks=1).keys(PROMPT)
    keys.slice(0, keys.num_blocks)


def filled_cache() -> KVCache:
    """A cache that holds the prompt."""
    cache = KVCache((GROUP,), num_blocks=8_000)
    cache.begin_step(0)
    sequence = cache.open(cache.keys(PROMPT))
    assert sequence.try_schedule(len(PROMPT)) is not None
    cache.complete_step(0)
    sequence.close(in_flight_until=None)
    return cache


def decode() -> None:
    """Mean time of a step of 256 decoding rows, in a cache that is full, by kind of call."""
    cache = KVCache((GROUP,), num_blocks=6_000)
    for step in range(6):
        cache.begin_step(step)
        filler = cache.open(cache.keys(PROMPT[step * 16_000 : (step + 1) * 16_000]))
        assert filler.try_schedule(16_000) is not None
        cache.complete_step(step)
        filler.close(in_flight_until=None)
    cache.begin_step(10)
    rows = [cache.open(cache.keys(PROMPT[i : i + 100 + i % 16])) for i in range(256)]
    ends = [row.keys.num_tokens for row in rows]
    for row, end in zip(rows, ends, strict=True):
        assert row.try_schedule(end) is not None
    cache.complete_step(10)
    token = np.array([7], np.uint32)
    for row, end in zip(rows, ends, strict=True):
        row.apply(end, token)
    for name, is_sparse in (("every row called", False), ("rows with work called", True)):
        start = time.perf_counter()
        for step in range(11, 11 + 64):
            cache.begin_step(step + 200 * is_sparse)
            ends = [end + 1 for end in ends]
            for row, end in zip(rows, ends, strict=True):
                if not is_sparse or end > row.capacity:
                    row.try_schedule(end)
            cache.complete_step(step + 200 * is_sparse)
            for row, end in zip(rows, ends, strict=True):
                if not is_sparse:
                    row.apply(end, token)
                elif end % 16 == 0:
                    row.apply(end, np.repeat(token, end + 1 - row.keys.num_tokens))
        mean = (time.perf_counter() - start) / 64 * 1e6
        print(f"decode step, 256 rows, {name:22}{mean:8.1f} us")


if __name__ == "__main__":
    main()
