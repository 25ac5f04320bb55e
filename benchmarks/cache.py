"""Costs of the KV cache: keys, hits, eviction, a decode step, a large pool. CPU time of one core.

    python benchmarks/cache.py [--record [FOLDER]]

The package's `tests/test_costs.py` fails if a long hit takes twice its goal.
"""

import itertools
import time
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np

from openinfer_kv_cache import (
    EVICTION_POLICIES,
    BlockKeys,
    BlockPool,
    CacheGroup,
    EvictionPolicy,
    KVCache,
    KVEventBatch,
    Plane,
)
from openinfer_testing import results

NUM_RUNS = 5
GOAL_OF_A_HIT_US = 1500.0
"""Goal for opening 100,000 cached tokens, without hashing them."""

GROUP = CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=1),))
QWEN35 = (
    CacheGroup(name="attention", planes=(Plane(name="kv", bytes_per_token=32_768),)),
    CacheGroup(
        name="delta", kind="state", planes=(Plane(name="state", bytes_per_token=51_511_296),)
    ),
)
DEEPSEEK_V4 = (
    CacheGroup(
        name="c4",
        entries_per_token=Fraction(1, 4),
        planes=(Plane(name="latent", bytes_per_token=26_880),),
    ),
    CacheGroup(
        name="c128",
        tokens_per_block=128,
        entries_per_token=Fraction(1, 128),
        planes=(Plane(name="latent", bytes_per_token=20_480),),
    ),
    CacheGroup(
        name="near",
        kind="window",
        window=128,
        planes=(Plane(name="latent", bytes_per_token=44_032),),
    ),
)
LAYOUTS: dict[str, tuple[tuple[CacheGroup, ...], dict[str, int]]] = {
    "one group": ((GROUP,), {"num_blocks": 8_000}),
    "Qwen3.5": (QWEN35, {"num_slabs": 3_000}),
    "DeepSeek-V4": (DEEPSEEK_V4, {"num_slabs": 3_000}),
}
PROMPT = np.random.default_rng(0).integers(0, 150_000, 100_000, dtype=np.uint32)


def measure() -> dict[str, object]:
    """Measures and prints every figure."""
    figures: dict[str, float] = {}

    def note(name: str, figure: float, unit: str = "us") -> None:
        figures[name] = round(figure, 1)
        print(f"{name:56}{figure:9.1f} {unit}")

    note("start a pool of 1M blocks", best(lambda: BlockPool(1_000_000)))
    note("memory of an empty pool of 1M blocks, MB", empty_pool_mb(), "MB")
    note("keys of 100k tokens", best(hash_prompt))
    for name, (groups, room) in LAYOUTS.items():
        cache = KVCache(groups, **room)
        fill(cache)
        keys = cache.keys(PROMPT)
        keys.slice(0, keys.num_blocks)
        assert cache.peek(keys) > 99_000

        def admit(cache: KVCache = cache, keys: BlockKeys = keys) -> None:
            cache.peek(keys)
            cache.open(keys, cache.match(keys)).close(in_flight_until=None)

        note(f"look up, pin, open, close 100k tokens, {name}", best(admit))
    for policy, make in EVICTION_POLICIES.items():
        note(f"fill, close, evict 6,250 by {policy}", best(turn_over(make)))
    note("the same by lru, with events sent", best(turn_over(None, has_events=True)))
    for name, mean in decode().items():
        note(f"decode step, 256 rows, {name}", mean)
    return {"best_of": NUM_RUNS, "us": figures}


def best(function: Callable[[], object]) -> float:
    """Returns the microseconds of CPU time of the best run."""
    times = []
    for _ in range(NUM_RUNS):
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)
    return min(times) * 1e6


def turn_over(
    make: Callable[[Callable[[], float]], EvictionPolicy] | None, *, has_events: bool = False
) -> Callable[[], None]:
    """Returns a function in which a prompt's blocks evict every block of the previous prompt."""
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
    """Computes the key of every block of the prompt."""
    keys = KVCache((GROUP,), num_blocks=1).keys(PROMPT)
    keys.slice(0, keys.num_blocks)


def empty_pool_mb() -> float:
    """Returns the size of an empty pool of 1M blocks, in MB."""
    tracemalloc.start()
    pool = BlockPool(1_000_000)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pool.num_free == 1_000_000
    return size / 1e6


def fill(cache: KVCache) -> None:
    """Caches the whole prompt and closes its sequence."""
    keys = cache.keys(PROMPT)
    sequence, end, step = cache.open(keys), 0, 0
    while end < len(PROMPT):
        cache.begin_step(step)
        end = cache.chunk_end(keys, end, min(end + 8192, len(PROMPT)))
        assert sequence.try_schedule(end) is not None
        cache.complete_step(step)
        sequence.apply(end)
        step += 1
    sequence.close(in_flight_until=None)


def decode() -> dict[str, float]:
    """Returns the mean microseconds of a step of 256 rows in a full cache, by kind of call."""
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
    means = {}
    for name, is_sparse in (("every row called", False), ("rows with work called", True)):
        start = time.thread_time()
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
        means[name] = (time.thread_time() - start) / 64 * 1e6
    return means


if __name__ == "__main__":
    results.run("cache", measure, __doc__)
