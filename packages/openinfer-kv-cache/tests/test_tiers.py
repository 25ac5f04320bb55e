"""Loads and saves in random programs: no wrong byte, no leaked block, no starvation."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from openinfer_kv_cache import (
    CacheGroup,
    FrequencyEviction,
    KVCache,
    MutableLease,
    NotIdle,
    Plane,
    UnsupportedGroup,
)
from openinfer_kv_cache.tiers import MemoryTier, TierLoads, TierSaves
from openinfer_kv_cache.tiers._loads import TierLoad

GROUP = CacheGroup(name="full", tokens_per_block=2, planes=(Plane(name="kv", bytes_per_token=8),))


def ids(*tokens):
    return np.array(tokens, np.uint32)


class FlakyTransfer:
    """A transfer that writes garbage and then fails."""

    def __init__(self, transfer, memory, block_ids):
        self.transfer, self.memory, self.block_ids = transfer, memory, block_ids
        self.error = None

    def poll(self):
        is_over = self.transfer.poll()
        if is_over and self.error is None:
            self.error = "the disk is full"
            for block in self.block_ids.tolist():
                self.memory.write(block, b"rubbish")
        return is_over


class FlakyTier:
    """A memory tier whose loads sometimes fail, and whose keys sometimes collide."""

    def __init__(self, tier, memory, rng):
        self.tier, self.memory, self.rng = tier, memory, rng
        self.name = tier.name
        self.seal, self.retire = tier.seal, tier.retire

    def resolve(self, span):
        hit = self.tier.resolve(span)
        if hit is None or self.rng.random() < 0.6:
            return hit
        if self.rng.random() < 0.5:
            num, column = hit.num_blocks, bytearray(hit.token_ids)
            column[self.rng.randrange(len(column))] ^= 1
            return SimpleNamespace(
                num_blocks=num, token_ids=bytes(column), load=hit.load, close=hit.close
            )

        def load(block_ids):
            return FlakyTransfer(hit.load(block_ids), self.memory, block_ids)

        return SimpleNamespace(
            num_blocks=hit.num_blocks, token_ids=hit.token_ids, load=load, close=hit.close
        )


class TierWorld:
    """Prompts without output: each block holds its key, and every hit checks the content."""

    def __init__(self, rng, num_blocks):
        self.rng = rng
        self.cache = KVCache(
            (GROUP,),
            num_blocks=num_blocks,
            keeps_token_ids=True,
            eviction=rng.choice([None, lambda: FrequencyEviction(lambda: 0.0)]),
        )
        self.blocks = [b""] * num_blocks
        memory = SimpleNamespace(read=self.blocks.__getitem__, write=self.blocks.__setitem__)
        self.entitled = rng.choice([0, 0, 3])
        self.tier = MemoryTier(memory, max_blocks=rng.choice([6, 40]), num_polls=3)
        self.loads = TierLoads(
            self.cache,
            [FlakyTier(self.tier, memory, rng)],
            num_entitled_blocks=lambda: self.entitled,
        )
        self.saves = TierSaves(self.cache, [self.tier], max_pinned_blocks=rng.choice([None, 4]))
        self.now = 0.0
        self.step = 0
        self.in_flight, self.waiting, self.rows = [], [], []

    def run(self, length=250):
        operations = (
            self.arrive,
            self.admit,
            self.admit,
            self.complete,
            self.complete,
            self.poll,
            self.poll,
            self.finish,
            self.finish,
            self.reset,
        )
        for _ in range(length):
            self.rng.choice(operations)()
            self.scribble()
        self.wind_down()

    def arrive(self):
        if len(self.waiting) > 3:
            return
        prompt = ids(*[(self.rng.randrange(4) >> (i % 2)) & 1 for i in range(2)] * 6)
        keys = self.cache.keys(prompt[: self.rng.randrange(3, 13)])
        room = self.cache.num_available_blocks
        load = self.loads.resolve(keys, deadline=self.now + self.rng.choice([1, 9]))
        if load is not None:
            taken = room - self.cache.num_available_blocks
            pinned = self.cache.peek(keys) // 2
            assert self.cache.num_available_blocks >= self.entitled
            assert taken <= load.num_tokens // 2 + pinned
        self.waiting.append((keys, load))

    def admit(self):
        ready = [w for w in self.waiting if w[1] is None or w[1].state != "loading"]
        if not ready or len(self.in_flight) == 2:
            return
        keys, _ = ready[0]
        self.waiting.remove(ready[0])
        self.step += 1
        self.cache.begin_step(self.step)
        self.in_flight.append((self.step, []))
        hit = self.cache.match(keys)
        sequence = self.cache.open(keys, hit)
        if sequence.try_schedule(keys.num_tokens) is None:
            sequence.close(in_flight_until=self.step)
            return
        row = SimpleNamespace(
            keys=keys,
            sequence=sequence,
            start=sequence.num_cached_tokens // 2,
            table=sequence.block_ids[0].tolist(),
            cursor=0,
            until=self.step,
        )
        self.rows.append(row)
        self.in_flight[-1][1].append(row)

    def complete(self):
        if not self.in_flight:
            return
        step_id, rows = self.in_flight.pop(0)
        for row in rows:
            chain = row.keys.slice(0, row.keys.num_blocks)
            for block, key in zip(row.table[: row.start], chain, strict=False):
                assert self.blocks[block] == key, "a wrong block was read"
        for row in rows:
            chain = row.keys.slice(0, row.keys.num_blocks)
            written = range(row.start, len(row.table))
            for index in written:
                self.blocks[row.table[index]] = chain[index] if index < len(chain) else b"part"
        self.cache.complete_step(step_id)
        self.save()

    def save(self):
        for row in self.rows:
            row.cursor = self.saves.seal(row.sequence, row.cursor)

    def poll(self):
        self.now += 1
        for load in self.loads.poll(self.now):
            assert load.state in ("done", "late", "failed")
        self.saves.poll()

    def finish(self):
        if self.rows:
            row = self.rows.pop(self.rng.randrange(len(self.rows)))
            done = all(row not in rows for _, rows in self.in_flight)
            row.sequence.close(in_flight_until=None if done else row.until)

    def reset(self):
        if self.rng.random() < 0.5:
            self.cache.reset()
            if self.rng.random() < 0.1:
                self.tier.retire()

    def scribble(self):
        pool = self.cache.pool
        for block in pool._free[: pool.num_free].tolist():
            self.blocks[block] = b"scribble"

    def wind_down(self):
        while self.in_flight:
            self.complete()
        while self.rows:
            self.finish()
        for _ in range(4):
            self.poll()
        assert (self.loads.num_pending, self.saves.num_pinned_blocks) == (0, 0)
        self.cache.assert_idle()


def run_all(num=400):
    worlds = []
    for seed in range(num):
        rng = random.Random(seed)
        worlds.append(TierWorld(rng, rng.choice([7, 20])))
        worlds[-1].run()
    return worlds


def test_random_programs_with_a_flaky_tier():
    worlds = run_all()
    assert sum(world.loads.num_loaded_tokens["host"] for world in worlds) > 500
    for name in ("num_failed", "num_late", "num_mismatched", "num_refused"):
        assert sum(getattr(world.loads, name) for world in worlds) > 20, name
    assert sum(world.saves.num_skipped_blocks for world in worlds) > 20


def publish_at_once(self, now):
    if self.state == "loading":
        self.state = "done"
        sealed, rest = self._lease.seal(self._keys, self._namespace)
        rest.close()
        sealed.publish().close()
        self._hit.close()
    return True


def ignore_errors(self, now):
    transfer = self._transfer
    self._transfer = SimpleNamespace(poll=transfer.poll, error=None)
    return POLL(self, now)


def give_up_late_blocks(self, now):
    if self.state == "late":
        return self._transfer.poll()
    is_over = POLL(self, now)
    if self.state == "late" and not is_over:
        self._lease.close()
        self._hit.close()
    return is_over


def starve(self, found, span):
    entitled, self._num_entitled = self._num_entitled, lambda: 0
    num = NUM_LOADABLE(self, found, span)
    self._num_entitled = entitled
    return num


POLL, NUM_LOADABLE = TierLoad.poll, TierLoads._num_loadable

MUTANTS = {
    "shares before it has arrived": (TierLoad, "poll", publish_at_once),
    "takes failures for blocks": (TierLoad, "poll", ignore_errors),
    "frees blocks that a late copy writes": (TierLoad, "poll", give_up_late_blocks),
    "takes what others may claim": (TierLoads, "_num_loadable", starve),
    "leaks failed loads": (MutableLease, "close", lambda self: None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_programs_catch(monkeypatch, name):
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises((AssertionError, NotIdle)):
        run_all(100)


class Device:
    """A device of eight blocks."""

    def __init__(self):
        self.blocks = dict.fromkeys(range(8), b"")

    def read(self, block):
        return self.blocks[block]

    def write(self, block, content):
        self.blocks[block] = content


def served(cache, keys, step_id):
    """Runs one request whose prompt is computed in one step."""
    cache.begin_step(step_id)
    sequence = cache.open(keys, cache.match(keys))
    assert sequence.try_schedule(keys.num_tokens) is not None
    return sequence


def test_a_save_waits_for_the_step_and_pins_its_source():
    cache = KVCache((GROUP,), num_blocks=8, keeps_token_ids=True)
    tier = MemoryTier(Device(), max_blocks=8, num_polls=2)
    saves = TierSaves(cache, [tier])
    sequence = served(cache, cache.keys(ids(1, 2, 3, 4, 5)), 1)
    cache.begin_step(2)
    assert saves.seal(sequence, 0) == 0, "planned and shared, but not written"
    cache.complete_step(1)
    assert saves.seal(sequence, 0) == 2
    cache.complete_step(2)
    sequence.close(in_flight_until=None)
    assert (cache.stats().num_pinned, saves.num_pinned_blocks) == (2, 2)
    saves.poll()
    assert cache.stats().num_pinned == 2
    saves.poll()
    assert (cache.stats().num_pinned, tier.num_blocks) == (0, 2)
    cache.assert_idle()


def test_a_collision_of_keys_is_no_hit():
    cache = KVCache((GROUP,), num_blocks=8, keeps_token_ids=True)
    tier = MemoryTier(Device(), max_blocks=8)
    saves, loads = TierSaves(cache, [tier]), TierLoads(cache, [tier])
    sequence = served(cache, cache.keys(ids(1, 2, 3, 4, 5)), 1)
    cache.complete_step(1)
    saves.seal(sequence, 0)
    saves.poll()
    sequence.close(in_flight_until=None)
    cache.reset()
    other = cache.keys(ids(1, 2, 3, 9, 5))
    other._keys = cache.keys(ids(1, 2, 3, 4, 5)).slice(0, 2)
    other._tail = b""
    load = loads.resolve(other)
    assert load is not None
    assert (load.num_tokens, loads.num_mismatched) == (2, 1)
    assert loads.poll(0.0) == [load]
    assert load.state == "done"
    assert cache.peek(other) == 2
    cache.assert_idle()


def test_loads_leave_the_blocks_that_admitted_requests_may_claim():
    cache = KVCache((GROUP,), num_blocks=4, keeps_token_ids=True)
    tier = MemoryTier(Device(), max_blocks=8)
    saves = TierSaves(cache, [tier])
    entitled = [4]
    loads = TierLoads(cache, [tier], num_entitled_blocks=lambda: entitled[0])
    keys = cache.keys(ids(1, 2, 3, 4, 5, 6, 7))
    sequence = served(cache, keys, 1)
    cache.complete_step(1)
    saves.seal(sequence, 0)
    saves.poll()
    sequence.close(in_flight_until=None)
    cache.reset()
    assert loads.resolve(keys) is None
    assert loads.num_refused == 1
    entitled[0] = 3
    load = loads.resolve(keys)
    assert (load.num_tokens, cache.num_available_blocks) == (2, 3)
    assert loads.poll(0.0) == [load]
    cache.assert_idle()


def test_a_late_load_ends_the_wait_and_is_shared_when_it_arrives():
    cache = KVCache((GROUP,), num_blocks=8, keeps_token_ids=True)
    tier = MemoryTier(Device(), max_blocks=8, num_polls=3)
    saves, loads = TierSaves(cache, [tier]), TierLoads(cache, [tier])
    keys = cache.keys(ids(1, 2, 3, 4, 5))
    sequence = served(cache, keys, 1)
    cache.complete_step(1)
    saves.seal(sequence, 0)
    for _ in range(3):
        saves.poll()
    sequence.close(in_flight_until=None)
    cache.reset()
    load = loads.resolve(keys, deadline=1.0)
    assert loads.poll(0.0) == []
    assert loads.poll(1.0) == [load]
    assert (load.state, loads.num_late, loads.num_pending) == ("late", 1, 1)
    assert (cache.peek(keys), cache.num_available_blocks) == (0, 6)
    assert loads.poll(2.0) == []
    assert (cache.peek(keys), loads.num_pending) == (4, 0)
    cache.assert_idle()


def test_without_blocks_to_load_there_is_no_load():
    cache = KVCache((GROUP,), num_blocks=8, keeps_token_ids=True)
    loads = TierLoads(cache, [MemoryTier(Device(), max_blocks=8)])
    assert loads.resolve(cache.keys(ids(1, 2, 3))) is None
    assert loads.resolve(cache.keys(ids(1))) is None
    cache.assert_idle()


@pytest.mark.parametrize("make", [TierLoads, TierSaves])
def test_tiers_take_one_full_group_alone(make, qwen35, deepseek_v4):
    full, state = qwen35
    c4, c128, window = deepseek_v4
    for groups, named in (
        ((full, state), "delta"),
        ((c4, c128, window), "near"),
        ((c4, c128), "c128"),
        ((state,), "delta"),
        ((window,), "near"),
    ):
        size = "num_slabs" if len(groups) > 1 else "num_blocks"
        cache = KVCache(groups, **{size: 4})
        with pytest.raises(UnsupportedGroup, match=f"'{named}'.*single full group"):
            make(cache, [])


@pytest.mark.parametrize("options", [{"max_blocks": 0}, {"max_blocks": 1, "num_polls": 0}], ids=str)
def test_sizes_are_checked(options):
    with pytest.raises(ValueError, match="at least 1"):
        MemoryTier(Device(), **options)
