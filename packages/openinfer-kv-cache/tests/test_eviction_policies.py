"""The eviction order of each policy, and checks that no policy can break the cache."""

import math
import random
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openinfer_kv_cache import (
    EVICTION_POLICIES,
    BlockPool,
    CacheUse,
    EvictionRank,
    FrequencyEviction,
    KVCache,
    PriorityEviction,
)
from openinfer_kv_cache.eviction._policy_queue import PolicyQueue
from openinfer_testing.programs import random_programs


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


class Scene:
    """A cache with a policy, and cached prompts of one block each."""

    def __init__(self, new_cache, policy, clock, num_blocks=8):
        self.cache = new_cache(num_blocks=num_blocks, eviction=lambda: policy)
        self.clock = clock
        self.step_id = 0

    def use(self, token, *, then=(), **use):
        """Runs a request with one block of `token` and one block for each token of `then`."""
        self.clock.now += 1
        self.step_id += 1
        self.cache.begin_step(self.step_id)
        prompt = np.repeat([token, *then, 99], 2).astype(np.uint32)
        keys = self.cache.keys(prompt)
        sequence = self.cache.open(keys, self.cache.match(keys), use=CacheUse(**use))
        assert sequence.try_schedule(len(prompt) - 1) is not None
        self.cache.complete_step(self.step_id)
        sequence.close(in_flight_until=None)

    def squeeze(self, num):
        """Takes all free blocks and evicts `num` more; returns the tokens that were evicted."""
        before = self.cached()
        pool = self.cache._space.pools[0]
        pool.release(pool.try_take(pool.num_free + num))
        return before - self.cached()

    def cached(self):
        found = set()
        for token in range(20):
            keys = self.cache.keys(np.repeat([token, 99], 2).astype(np.uint32))
            if self.cache.peek(keys):
                found.add(token)
        return found


def test_frequent_blocks_outlive_recent_ones(new_cache, clock):
    scene = Scene(new_cache, FrequencyEviction(clock), clock)
    for token in (1, 1, 1, 2, 2, 3):
        scene.use(token)
    assert scene.squeeze(1) == {3}
    assert scene.squeeze(1) == {2}
    assert scene.squeeze(1) == {1}


def test_frequency_fades(new_cache, clock):
    scene = Scene(new_cache, FrequencyEviction(clock, half_life_s=100.0), clock)
    for _ in range(8):
        scene.use(1)
    clock.now += 250.0
    scene.use(2)
    assert scene.squeeze(1) == {2}, "8 uses are more than 1 after less than three half-lives"
    scene.use(3)
    clock.now += 1e9
    scene.use(4)
    assert scene.squeeze(1) == {3} or 3 not in scene.cached()
    clock.now += 100.0
    scene.use(5)
    assert scene.squeeze(1) == {1}, "forgotten by now"


def test_new_content_starts_without_history(clock):
    for policy in (FrequencyEviction(clock), PriorityEviction(clock)):
        policy.attach(2)
        ids = np.array([1], np.int32)
        fresh = policy.rank(1)
        policy.used(ids, CacheUse(priority=-5, session_id="a", hint="pin"))
        assert policy.rank(1) != fresh
        policy.stored(ids)
        assert policy.rank(1) == fresh


def test_ranks(new_cache, clock):
    scene = Scene(new_cache, PriorityEviction(clock), clock)
    scene.use(1, hint="pin")
    scene.use(2, session_id="a")
    scene.use(3)
    scene.use(4, hint="demote")
    assert [scene.squeeze(1) for _ in range(4)] == [{4}, {3}, {2}, {1}]


def test_important_blocks_stay_longest_and_then_recent_ones(new_cache, clock):
    scene = Scene(new_cache, PriorityEviction(clock), clock)
    scene.use(1, priority=-1)
    for token in (2, 3, 2):
        scene.use(token)
    scene.use(4, priority=7)
    assert [scene.squeeze(1) for _ in range(4)] == [{4}, {3}, {2}, {1}]


def test_pins_and_sessions_expire(new_cache, clock):
    policy = PriorityEviction(clock, session_ttl_s=50.0, pin_ttl_s=500.0)
    scene = Scene(new_cache, policy, clock)
    scene.use(1, hint="pin")
    scene.use(2, session_id="a")
    clock.now += 60.0
    scene.use(3)
    assert scene.squeeze(1) == {2}, "the session is over, and it is older"
    scene.use(4, session_id="b")
    clock.now += 600.0
    assert [scene.squeeze(1) for _ in range(3)] == [{1}, {3}, {4}]


def test_a_session_that_continues_is_kept(new_cache, clock):
    scene = Scene(new_cache, PriorityEviction(clock, session_ttl_s=50.0), clock)
    for _ in range(5):
        scene.use(1, session_id="a")
        clock.now += 40.0
    scene.use(2)
    assert scene.squeeze(1) == {2}


def test_a_session_demotes_its_own_blocks_but_no_shared_ones(new_cache, clock):
    scene = Scene(new_cache, PriorityEviction(clock), clock)
    scene.use(1, session_id="a")
    scene.use(2, session_id="a")
    scene.use(2, session_id="b")
    scene.use(1, session_id="a", hint="demote")
    scene.use(2, session_id="a", hint="demote")
    scene.use(3)
    assert [scene.squeeze(1) for _ in range(3)] == [{1}, {3}, {2}]
    scene.use(4, hint="demote")
    scene.use(5)
    scene.use(4)
    assert [scene.squeeze(1) for _ in range(2)] == [{5}, {4}], "used again, it counts again"


def test_a_pinned_leaf_keeps_its_parents(new_cache, clock):
    scene = Scene(new_cache, PriorityEviction(clock), clock)
    scene.use(1)
    scene.use(1, then=(2,), hint="pin")
    scene.use(1, hint="demote")
    scene.use(3)
    assert scene.squeeze(1) == {3}
    assert scene.cached() == {1}


def test_policies_are_found_by_name():
    assert set(EVICTION_POLICIES) == {"lru", "lfu", "priority"}


def test_settings_are_checked(clock):
    with pytest.raises(ValueError, match="half_life_s"):
        FrequencyEviction(clock, half_life_s=0.0)
    for name in ("session_ttl_s", "pin_ttl_s"):
        for seconds in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=name):
                PriorityEviction(clock, **{name: seconds})


class Hostile:
    """Returns invalid ranks and times, and tries to write to its arguments."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.times = 0.0

    def clock(self):
        self.times += self.random.choice([0.0, 1.0, -5.0, math.inf])
        return self.times

    def attach(self, num_blocks, /):
        self.num_blocks = num_blocks

    def stored(self, block_ids, /):
        self.spoil(block_ids)

    def used(self, block_ids, use, /):
        self.spoil(block_ids)

    def spoil(self, block_ids):
        with pytest.raises(ValueError, match="read-only"):
            block_ids[:] = 0

    def rank(self, block_id, /):
        values = [0.0, self.random.random(), math.nan, math.inf, -math.inf, -block_id]
        until = self.random.choice([math.inf, math.nan, -1.0, self.times, self.times + 2])
        return EvictionRank((self.random.choice(values),), until)


def policies(clock):
    return [FrequencyEviction(clock), PriorityEviction(clock), *map(Hostile, range(6))]


def bossed(world, new_cache, num_blocks, size, policy):
    """The naive world with a policy; it checks that only leaves that are not held are evicted."""

    class Bossed(world):
        def __init__(self):
            super().__init__(num_blocks, size)
            self.cache = new_cache(num_blocks, size, eviction=lambda: policy)

    return Bossed()


NUMBER = st.integers(0, 63)
PROGRAMS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=80)


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    program=PROGRAMS,
    num_blocks=st.sampled_from([5, 12, 40]),
    size=st.sampled_from([1, 2, 3]),
    which=st.integers(0, 7),
)
def test_no_policy_breaks_the_rules(world, new_cache, program, num_blocks, size, which):
    policy = policies(Clock())[which]
    bossed(world, new_cache, num_blocks, size, policy).run(program)


def run_long_programs(world, new_cache, num):
    num_evictions = 0
    programs = random_programs(num, num_operations=10, length=120)
    for seed, program in enumerate(programs):
        policy = policies(Clock())[seed % 8]
        boss = bossed(world, new_cache, [5, 12, 40][seed % 3], 1 + seed % 3, policy)
        boss.run(program)
        num_evictions += boss.cache.stats().num_evictions
    return num_evictions


@pytest.mark.long
def test_no_policy_breaks_the_rules_of_long_programs(world, new_cache):
    assert run_long_programs(world, new_cache, 300) > 300


def take_any(self, num):
    ids = np.flatnonzero(self._is_evictable)[:num].astype(np.int32)
    self.remove(ids)
    return ids


def offer_parents_too(self, ids):
    self._is_evictable[ids] = True
    self._size += len(ids)
    for block in ids.tolist():
        self._insert(block)
        self._num_children.pop(self._key[block], None)


def stay_evictable(self, ids):
    self._size -= len(ids)


MUTANTS = {
    "takes any": ("pop", take_any),
    "does not count children": ("push", offer_parents_too),
    "gives up what is held": ("remove", stay_evictable),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_programs_catch_a_queue_that(world, new_cache, monkeypatch, name):
    monkeypatch.setattr(PolicyQueue, *MUTANTS[name])
    with pytest.raises((AssertionError, KeyError, IndexError)):
        run_long_programs(world, new_cache, 100)


def test_the_heap_does_not_grow_with_reuse(clock):
    pool = BlockPool(8)
    pool.order_by(FrequencyEviction(clock))
    ids = pool.try_take(4)
    pool.register(ids, [bytes([i]) * 16 for i in range(4)], 0)
    pool.release(ids)
    for _ in range(1000):
        pool.release(pool.find([bytes([0]) * 16]))
    assert len(pool._policed._heap) < 200


def test_a_policy_comes_before_anything_is_cached(clock):
    pool = BlockPool(2)
    pool.register(pool.try_take(1), [bytes(16)], 0)
    with pytest.raises(AssertionError, match="cached blocks already"):
        pool.order_by(FrequencyEviction(clock))


def test_a_pin_protects_slabs(qwen35):
    """A policy's ranks, not the time of the last use, decide which slabs another group takes."""
    now = [0.0]
    for hint in ("pin", ""):
        policy = partial(PriorityEviction, lambda: now[0], pin_ttl_s=100.0)
        cache = KVCache(qwen35, num_slabs=12, eviction=policy)

        def serve(number, hint="", cache=cache):
            now[0] += 1.0
            keys = cache.keys(np.arange(number * 10_000, number * 10_000 + 2000, dtype=np.uint32))
            cache.begin_step(int(now[0]))
            sequence = cache.open(keys, cache.match(keys), use=CacheUse(hint=hint))
            assert sequence.try_schedule(cache.chunk_end(keys, sequence.num_computed, 2000))
            cache.complete_step(int(now[0]))
            sequence.close(in_flight_until=None)
            return keys

        first, second = serve(1, hint), serve(2)
        while cache.peek(first) and cache.peek(second):
            serve(int(now[0]) + 10)
        assert (cache.peek(first) > 0) == (hint == "pin"), hint
        now[0] += 1000.0  # the pin has expired
        for _ in range(12):
            serve(int(now[0]) + 10)
        assert not cache.peek(first)
        cache.assert_idle()
