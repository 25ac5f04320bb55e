import time
import tracemalloc

import numpy as np
import pytest

from openinfer_kv_cache import BlockPool

KEYS = [bytes([i]) * 16 for i in range(8)]


def cached(pool, keys):
    ids = pool.try_take(len(keys))
    assert pool.register(ids, keys, pool.namespace).tolist() == ids.tolist()
    pool.release(ids)
    return ids


def test_takes_all_or_nothing():
    pool = BlockPool(4)
    assert pool.try_take(5) is None
    assert sorted(pool.try_take(4).tolist()) == [0, 1, 2, 3]
    assert pool.try_take(1) is None
    assert pool.try_take(0).tolist() == []


def test_unused_blocks_go_before_cached_ones_and_leaves_before_parents():
    pool = BlockPool(5)
    old, new = cached(pool, KEYS[:2]), cached(pool, KEYS[2:4])
    assert (pool.num_free, pool.num_evictable) == (1, 4)
    assert pool.try_take(1)[0] not in {*old.tolist(), *new.tolist()}
    assert pool.num_evictions == 0
    order = [int(pool.try_take(1)[0]) for _ in range(4)]
    assert order == [old[1], old[0], new[1], new[0]]
    assert pool.num_evictions == 4
    assert pool.find(KEYS).tolist() == []


def test_a_match_counts_as_a_recent_use():
    pool = BlockPool(4)
    first, second = cached(pool, KEYS[:2]), cached(pool, KEYS[2:4])
    pool.release(pool.find(KEYS[:2]))
    assert sorted(pool.try_take(2).tolist()) == sorted(second.tolist())
    assert pool.find(KEYS[:2]).tolist() == first.tolist()
    assert pool.find(KEYS[2:4]).tolist() == []


def test_a_large_pool_evicts_a_little_ahead_of_need():
    pool = BlockPool(4096)
    cached(pool, [i.to_bytes(16, "little") for i in range(4096)])
    pool.try_take(1)
    assert (pool.num_evictions, pool.num_free, pool.num_available) == (4, 3, 4095)
    assert pool.try_take(4095) is not None
    assert (pool.num_evictions, pool.num_available) == (4096, 0)


def test_shared_blocks_count_once():
    pool = BlockPool(4)
    cached(pool, KEYS[:2])
    holds = [pool.find(KEYS[:2]) for _ in range(3)]
    assert (pool.num_pinned, pool.num_available) == (2, 2)
    for ids in holds:
        pool.release(ids)
    assert (pool.num_pinned, pool.num_available) == (0, 4)


def test_a_hit_ends_at_the_first_miss():
    pool = BlockPool(4)
    ids = cached(pool, KEYS[:3])
    assert pool.find([KEYS[0], KEYS[7], KEYS[2]]).tolist() == ids[:1].tolist()


def test_a_duplicate_stays_private_and_holds_the_first():
    pool = BlockPool(4)
    cached(pool, KEYS[:1])
    first = pool.find(KEYS[:1])
    own = pool.try_take(1)
    anchors = pool.register(own, KEYS[:1], pool.namespace)
    assert anchors.tolist() == first.tolist()
    assert (pool.num_pinned, pool.num_free) == (1, 2)
    pool.release(own)
    pool.release(anchors)
    pool.release(first)
    assert (pool.num_free, pool.num_evictable) == (3, 1)


def test_a_duplicate_replaces_an_evictable_block():
    pool = BlockPool(5)
    cached(pool, KEYS[:3])
    held = pool.find(KEYS[:1])
    own = pool.try_take(2)
    available = pool.num_available
    anchors = pool.register(own, KEYS[:2], pool.namespace)
    assert anchors.tolist() == [held[0], own[1]]
    assert pool.num_available == available, "being indexed costs no block"
    assert pool.find(KEYS[:3])[:2].tolist() == anchors.tolist()


def test_reset_frees_evictable_blocks_and_unindexes_held_ones():
    pool = BlockPool(4)
    cached(pool, KEYS[:2])
    held, namespace = pool.find(KEYS[:1]), pool.namespace
    pool.reset()
    assert (pool.num_free, pool.num_evictable, pool.num_pinned) == (3, 0, 0)
    fresh = pool.try_take(1)
    pool.register(fresh, KEYS[3:4], namespace)
    assert pool.find(KEYS[3:4]).tolist() == []
    pool.release(held)
    pool.release(fresh)
    assert pool.num_free == 4


def test_releasing_a_block_too_often_fails_an_assertion():
    pool = BlockPool(2)
    ids = pool.try_take(1)
    pool.release(ids)
    with pytest.raises(AssertionError):
        pool.release(ids)


@pytest.mark.parametrize("num_blocks", [0, -1, 2**31])
def test_size_is_checked(num_blocks):
    with pytest.raises(ValueError, match="num_blocks"):
        BlockPool(num_blocks)


@pytest.mark.timed
def test_a_million_blocks_start_fast_and_small():
    tracemalloc.start()
    start = time.perf_counter()
    pool = BlockPool(1_000_000)
    elapsed, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert elapsed < 1
    assert peak < 200e6
    assert np.unique(pool.try_take(1_000_000)).size == 1_000_000
