"""Events rebuild the index in fixed scenes and random programs, and faulty events are caught."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openinfer_kv_cache import (
    AllBlocksCleared,
    BlockKeys,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
)
from openinfer_kv_cache._steps import Reservation
from openinfer_kv_cache.events._dynamo import root_hash, sequence_hashes
from openinfer_kv_cache.events._events import GroupEvents
from openinfer_kv_cache.pool._block_list import SequenceBlocks
from openinfer_kv_cache.pool._pool import BlockPool
from openinfer_testing.programs import random_programs


def ids(*tokens):
    return np.array(tokens, np.uint32)


def hashes_of(tokens, size=2, **seed):
    keys = BlockKeys(size, keeps_token_ids=True, **seed)
    keys.extend(np.array(tokens, np.uint32))
    column = keys.token_column(0, keys.num_blocks)
    return sequence_hashes(column, size, root_hash(keys.seed))


def run(cache, step_id, tokens, **seed):
    cache.begin_step(step_id)
    keys = cache.keys(np.array(tokens, np.uint32), **seed)
    sequence = cache.open(keys, cache.match(keys))
    assert sequence.try_schedule(len(tokens)) is not None
    cache.complete_step(step_id)
    sequence.close(in_flight_until=None)


class Mirror:
    """A subscriber's copy of the index: hash to the tokens up to the block's end."""

    def __init__(self):
        self.tokens = {}
        self.stored = []

    def apply(self, events):
        self.stored = []
        for event in events:
            if isinstance(event, BlockStored):
                self.store(event)
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    del self.tokens[block]
            else:
                self.tokens.clear()

    def store(self, event):
        parent, size = event.parent_block_hash, event.block_size
        tokens = () if parent is None else self.tokens[parent]
        assert len(event.token_ids) == size * len(event.block_hashes)
        for i, block in enumerate(event.block_hashes):
            assert block not in self.tokens, "stored twice"
            tokens += tuple(event.token_ids[i * size : (i + 1) * size])
            self.tokens[block] = tokens
            self.stored.append(block)


def test_a_block_is_stored_when_its_step_has_completed(new_cache):
    cache = new_cache(has_events=True)
    cache.begin_step(1)
    keys = cache.keys(ids(1, 2, 3, 4, 5))
    sequence = cache.open(keys)
    sequence.try_schedule(5)
    cache.begin_step(2)
    follower = cache.open(keys, cache.match(keys))
    assert follower.num_cached_tokens == 4
    assert cache.take_events() == [], "shared already, written not yet"
    cache.complete_step(1)
    (stored,) = cache.take_events()
    assert stored == BlockStored(
        block_hashes=hashes_of([1, 2, 3, 4]),
        parent_block_hash=None,
        token_ids=[1, 2, 3, 4],
        block_size=2,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    cache.complete_step(2)
    sequence.apply(5, ids(6, 7, 8))
    sequence.close(in_flight_until=None)
    follower.close(in_flight_until=None)
    assert cache.take_events() == []


def test_output_names_its_parent(new_cache):
    cache = new_cache(has_events=True)
    cache.begin_step(1)
    sequence = cache.open(cache.keys(ids(1, 2, 3)))
    sequence.try_schedule(6)
    cache.complete_step(1)
    cache.take_events()
    sequence.apply(3, ids(4, 5, 6, 7))
    sequence.apply(6)
    (stored,) = cache.take_events()
    hashes = hashes_of([1, 2, 3, 4, 5, 6])
    assert (stored.parent_block_hash, stored.block_hashes) == (hashes[0], hashes[1:])
    assert stored.token_ids == [3, 4, 5, 6]
    sequence.close(in_flight_until=None)


def test_adapter_and_salt_are_named(new_cache):
    cache = new_cache(has_events=True)
    run(cache, 1, range(4), adapter_uid=b"\x12\xab", salt=b"pepper")
    run(cache, 2, range(4), salt=b"pepper")
    both, salted = cache.take_events()
    assert both.lora_name == "12ab"
    assert both.extra_keys == [["12ab", "pepper"], ["12ab"]]
    assert (salted.lora_name, salted.extra_keys) == (None, [["pepper"], None])
    assert both.block_hashes == hashes_of(range(4), adapter_uid=b"\x12\xab", salt=b"pepper")
    assert both.parent_block_hash is None
    assert not {*both.block_hashes} & {*salted.block_hashes}


def test_evicted_blocks_are_removed_children_first(new_cache):
    cache = new_cache(num_blocks=2, has_events=True)
    run(cache, 1, range(4))
    cache.take_events()
    run(cache, 2, [7, 8, 9])
    removed, stored = cache.take_events()
    assert removed == BlockRemoved(hashes_of(range(4))[::-1], "GPU", 0)
    assert stored.block_hashes == hashes_of([7, 8])


def test_a_reset_is_announced_once_and_drops_earlier_events(new_cache):
    cache = new_cache(has_events=True)
    run(cache, 1, range(4))
    cache.reset()
    cache.reset()
    assert cache.take_events() == [AllBlocksCleared()]
    run(cache, 2, range(4))
    (stored,) = cache.take_events()
    assert stored.block_hashes == hashes_of(range(4))


def test_after_a_reset_steps_in_flight_announce_nothing(new_cache):
    cache = new_cache(has_events=True)
    cache.begin_step(1)
    sequence = cache.open(cache.keys(ids(*range(4))))
    sequence.try_schedule(4)
    cache.reset()
    cache.complete_step(1)
    sequence.apply(4, ids(4, 5))
    assert cache.take_events() == [AllBlocksCleared()]
    sequence.close(in_flight_until=None)


def test_without_a_prefix_cache_nothing_is_stored(new_cache):
    cache = new_cache(has_prefix_cache=False, has_events=True)
    run(cache, 1, range(8))
    assert cache.take_events() == []
    cache.reset()
    assert cache.take_events() == [AllBlocksCleared()]


def test_taking_events_needs_a_cache_with_events(new_cache):
    cache = new_cache()
    run(cache, 1, range(8))
    with pytest.raises(ValueError, match="has_events"):
        cache.take_events()
    with pytest.raises(ValueError, match="not keep"):
        cache.keys(ids(1, 2)).token_column(0, 1)


def test_a_block_computed_again_is_neither_removed_nor_stored(new_cache):
    cache = new_cache(has_events=True)
    run(cache, 1, range(6))
    cache.take_events()
    run(cache, 2, range(4))  # the last block is no hit: one token must be computed
    assert cache.take_events() == []


def test_a_hash_needs_no_announced_parent(new_cache):
    """A block may be announced before its parent."""
    cache = new_cache()
    events = GroupEvents(pending := [], 0, cache.groups[0])
    keys = BlockKeys(2, keeps_token_ids=True, salt=b"s")
    keys.extend(ids(*range(6)))
    events.landed(keys, 1, 2)
    events.landed(keys, 0, 3)
    expected = hashes_of(range(6), salt=b"s")
    assert [event.block_hashes for event in pending] == [expected[1:2], expected[:1], expected[2:]]
    assert [event.parent_block_hash for event in pending] == [expected[0], None, expected[1]]


def watched(world, new_cache, num_blocks, size):
    """The naive world with a subscriber whose copy of the index is checked after every
    operation."""

    class Watched(world):
        def __init__(self):
            super().__init__(num_blocks, size)
            self.cache = new_cache(num_blocks, size, has_events=True)
            self.mirror = Mirror()
            self.num_batches = 0

        def check(self):
            super().check()
            self.num_batches += 1
            batch = KVEventBatch(0.0, self.cache.take_events(), 0)
            before = set(self.mirror.tokens)
            self.mirror.apply(KVEventBatch.decode(batch.encode()).events)
            truth = self.indexed()
            assert set(self.mirror.tokens) <= set(truth), "announced and not indexed"
            if not self.steps:
                assert set(self.mirror.tokens) == set(truth), "indexed and not announced"
            chains = set(self.mirror.tokens.values())
            assert all(len(t) == size or t[:-size] in chains for t in chains), "orphaned"
            for block in set(self.mirror.tokens) - before:
                self.check_stored(block, *truth[block])

        def indexed(self):
            """Sequence hash to (block, adapter, tokens) for everything in the index."""
            found = {}
            for keys in self.chains:
                num = keys.num_blocks
                column = keys.token_column(0, num)
                hashes = sequence_hashes(column, size, root_hash(keys.seed))
                tokens = np.frombuffer(column, "<u4").tolist()
                for i, (key, block) in enumerate(zip(keys.slice(0, num), hashes, strict=True)):
                    place = self.cache._space.pools[0]._index.get(key)
                    if place is not None:
                        adapter = 8 if keys.adapter_uid else 0
                        found[block] = (place, adapter, tuple(tokens[: (i + 1) * size]))
            return found

        def check_stored(self, block, place, adapter, tokens):
            assert self.mirror.tokens[block] == tokens
            start = len(tokens) - size
            expected = [(self.version, adapter, tokens[: start + i + 1]) for i in range(size)]
            assert self.memory[place] == expected, "announced before it was written"

    return Watched()


NUMBER = st.integers(0, 63)
PROGRAMS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=60)


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(program=PROGRAMS, num_blocks=st.sampled_from([5, 12, 40]), size=st.sampled_from([1, 2, 3]))
def test_programs_keep_the_subscriber_right(world, new_cache, program, num_blocks, size):
    watched(world, new_cache, num_blocks, size).run(program)


def run_long_programs(world, new_cache, num=60, length=100):
    programs = random_programs(num, num_operations=10, length=length)
    for seed, program in enumerate(programs):
        watched(world, new_cache, [5, 12, 40][seed % 3], 1 + seed % 3).run(program)


def test_long_programs_keep_the_subscriber_right(world, new_cache):
    run_long_programs(world, new_cache, num=200)


def sealed(reservation):
    seals = reservation._seals
    return (0, 0) if seals is None else (seals.before[0], seals.after[0])


def announce_at_publish(self):
    if self.is_in_flight:
        self._blocks.publish()
        self._blocks.announce(self._keys, *sealed(self))


def announce_always(self, keys, start, stop):
    self._pool.events.landed(keys, start, stop)


def unindex_silently(self, ids):
    self._unindex(ids)


MUTANTS = {
    "announces what is not written": (Reservation, "_publish", announce_at_publish),
    "announces after a reset": (SequenceBlocks, "announce", announce_always),
    "announces nothing": (SequenceBlocks, "announce", lambda *a: None),
    "evicts silently": (BlockPool, "unindex", unindex_silently),
    "resets silently": (GroupEvents, "cleared", lambda self: None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_subscriber_catches(world, new_cache, monkeypatch, name):
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises((AssertionError, KeyError)):
        run_long_programs(world, new_cache)
