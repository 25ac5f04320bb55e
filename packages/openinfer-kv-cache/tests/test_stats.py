"""The statistics of a cache, on a clock that the tests set."""

import numpy as np
import pytest

from openinfer_kv_cache import BlockPool, CachedLease, CacheUse, FrequencyEviction, MutableLease


class Clock:
    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def run(cache, step_id, tokens, **use):
    cache.begin_step(step_id)
    keys = cache.keys(np.array(tokens, np.uint32))
    sequence = cache.open(keys, cache.match(keys), use=CacheUse(**use))
    assert sequence.try_schedule(len(tokens)) is not None
    cache.complete_step(step_id)
    sequence.close(in_flight_until=None)


def test_queries_and_hits(new_cache):
    cache = new_cache()
    run(cache, 1, range(7))
    run(cache, 2, range(7))
    cache.open(cache.keys(np.arange(7, dtype=np.uint32))).close(in_flight_until=None)
    (group,) = cache.stats().groups
    assert (group.name, group.tier, group.num_blocks) == ("full", "device", 16)
    assert (group.num_queries, group.num_queried_tokens, group.num_hit_tokens) == (2, 14, 6)
    assert (group.num_cached, group.num_evictable, group.num_evictions) == (3, 3, 0)


def test_residency_is_from_storing_to_eviction(new_cache, clock):
    cache = new_cache(num_blocks=3, clock=clock)
    run(cache, 1, range(4))
    clock.now += 10.0
    run(cache, 2, range(4))
    clock.now += 20.0
    run(cache, 3, [7, 8, 9, 10, 11])
    (group,) = cache.stats().groups
    assert group.num_evictions == 2
    # Both keys were cached for 30 s, but the second block was not matched and was computed again
    # after 10 s.
    assert group.residency_s == 30.0 + 20.0


def test_the_gap_is_from_the_last_use_to_the_next(new_cache, clock):
    cache = new_cache(clock=clock)
    run(cache, 1, range(7))
    clock.now += 8.0
    cache.begin_step(2)
    keys = cache.keys(np.arange(7, dtype=np.uint32))
    cache.match(keys).close()
    assert cache.stats().groups[0].num_reused == 0, "looked at, not used"
    first = cache.open(keys, cache.match(keys))
    second = cache.open(keys, cache.match(keys))
    (group,) = cache.stats().groups
    assert (group.num_reused, group.reuse_gap_s) == (3, 24.0), "the second found them in use"
    cache.complete_step(2)
    first.close(in_flight_until=None)
    second.close(in_flight_until=None)


def test_a_look_up_does_not_restart_the_reuse_gap(new_cache, clock):
    cache = new_cache(clock=clock)
    run(cache, 1, range(7))
    for step_id in range(2, 6):
        clock.now += 1.0
        cache.begin_step(step_id)
        cache.match(cache.keys(np.arange(7, dtype=np.uint32))).close()
        cache.complete_step(step_id)
    run(cache, 6, range(7))
    assert cache.stats().groups[0].reuse_gap_s == 3 * 4.0


def test_a_policy_does_not_change_the_counts(new_cache, clock):
    counts = []
    for options in ({}, {"eviction": lambda: FrequencyEviction(clock)}):
        clock.now = 0.0
        cache = new_cache(num_blocks=6, clock=clock, **options)
        for step_id in range(1, 9):
            clock.now += 1.0
            run(cache, step_id, np.arange(5) + 10 * (step_id % 3))
        counts.append(cache.stats())
    assert counts[0].num_hit_tokens == counts[1].num_hit_tokens > 0
    assert counts[0].groups[0].num_reused == counts[1].groups[0].num_reused > 0


def test_a_reset_is_no_eviction(new_cache, clock):
    cache = new_cache(clock=clock)
    run(cache, 1, range(7))
    clock.now += 9.0
    cache.reset()
    (group,) = cache.stats().groups
    assert (group.num_cached, group.num_evictions, group.residency_s) == (0, 0, 0.0)
    run(cache, 2, range(7))
    assert cache.stats().groups[0].num_reused == 0


def test_without_a_prefix_cache_nothing_is_counted(new_cache):
    cache = new_cache(has_prefix_cache=False)
    run(cache, 1, range(7))
    run(cache, 2, range(7))
    (group,) = cache.stats().groups
    assert (group.num_cached, group.num_hit_tokens, group.num_reused) == (0, 0, 0)


def test_the_reuse_gap_of_an_unused_block_starts_at_indexing():
    """Blocks that a tier has loaded are in this state."""
    pool = BlockPool(4)
    pool.now = 5.0
    sealed, rest = MutableLease.try_take(pool, 1).seal([b"a"], pool.namespace)
    sealed.publish().close()
    rest.close()
    pool.now = 9.0
    hit = CachedLease.match(pool, [b"a"])
    hit.note_reuse()
    assert (pool.num_reused, pool.reuse_gap_s) == (1, 4.0)
    hit.close()
