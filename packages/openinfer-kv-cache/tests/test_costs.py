"""CPU time of long prefix hits: fails at twice the goal of `benchmarks/cache.py`."""

import importlib.util
from pathlib import Path
from time import thread_time

import pytest

from openinfer_kv_cache import KVCache
from openinfer_kv_cache.arena._arena import Arena

pytestmark = pytest.mark.timed


@pytest.fixture(scope="module")
def benchmark():
    path = Path(__file__).parents[3] / "benchmarks" / "cache.py"
    spec = importlib.util.spec_from_file_location("cache_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["one group", "Qwen3.5", "DeepSeek-V4"])
def test_a_long_hit(benchmark, name):
    groups, room = benchmark.LAYOUTS[name]
    cache = KVCache(groups, **room)
    benchmark.fill(cache)
    keys = cache.keys(benchmark.PROMPT)
    keys.slice(0, keys.num_blocks)

    def admit():
        hit = cache.match(keys)
        assert hit.num_tokens == cache.peek(keys) > 99_000
        cache.open(keys, hit).close(in_flight_until=None)

    assert benchmark.best(admit) < 2 * benchmark.GOAL_OF_A_HIT_US


def test_slabs_that_move_together_are_ranked_once():
    def seconds(num_slabs):
        arena = Arena(num_slabs, (4, 4), (False, False))
        for name, pool in zip((b"a", b"b"), arena.pools, strict=True):
            ids = pool.try_take(2 * num_slabs)
            pool.register(ids, [name + b"%d" % block for block in ids], 0)
            pool.release(ids)
        begin = thread_time()
        assert arena.pools[1].try_take(4 * 256) is not None
        assert arena.num_moves == 256
        return thread_time() - begin

    few, many = (min(seconds(num_slabs) for _ in range(5)) for num_slabs in (2_000, 32_000))
    assert many < 4 * few, "each move looks at all that could move"
