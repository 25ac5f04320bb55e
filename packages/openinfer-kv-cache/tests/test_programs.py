"""Random programs in the naive world; the same programs catch deliberate faults in the cache."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openinfer_kv_cache import BlockPool, LeaseUsed, NotIdle, _keys
from openinfer_kv_cache._steps import StepLedger
from openinfer_kv_cache.pool import _runs
from openinfer_kv_cache.pool._block_list import SequenceBlocks
from openinfer_kv_cache.pool._runs import ChainRuns
from openinfer_testing.programs import random_programs

NUMBER = st.integers(0, 63)
PROGRAMS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=80)


@pytest.mark.long
@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(program=PROGRAMS, num_blocks=st.sampled_from([5, 12, 40]), size=st.sampled_from([1, 2, 3]))
def test_programs_keep_the_rules(world, program, num_blocks, size):
    world(num_blocks, size).run(program)


def run_all(world, num=150, **options):
    for seed, program in enumerate(random_programs(num, num_operations=10, length=120)):
        world([5, 12, 40][seed % 3], 1 + seed % 3).run(program, **options)


@pytest.mark.long
def test_long_random_programs_keep_the_rules(world):
    run_all(world, num=1000)


@pytest.mark.slow
def test_thousands_of_programs_keep_the_rules_after_every_operation(world):
    run_all(world, num=2000, check_every=1)


def test_programs_reach_hits_and_evictions(world):
    num_hits = num_run_hits = num_evictions = 0
    for program in random_programs(20, num_operations=10, length=120):
        w = world(12, 2)
        w.run(program)
        num_hits += w.num_hits
        num_run_hits += w.num_run_hits
        num_evictions += w.cache.stats().num_evictions
    assert num_hits > 30
    assert num_run_hits > 40
    assert num_evictions > 50


def free_at_once(self, blocks, step_id):
    blocks.release()


def parents_first(self, ids):
    counts = self._refcounts[ids] - 1
    self._refcounts[ids] = counts
    idle = ids[counts == 0]
    self._evictable.push(idle[self._is_indexed[idle]])
    self._put_free(idle[~self._is_indexed[idle]])


def seal_and_publish(self, keys):
    self._sealed, self._mutable = self._mutable.seal(keys, self.namespace)
    self.num_sealed += len(keys)
    self.publish()


def unpinned_anchors(self, ids, keys, namespace, above=None):
    for block, key in zip(ids.tolist(), keys, strict=True):
        if self._index.setdefault(key, block) == block:
            self._keys[block] = key
            self._is_indexed[block] = True
    return ids


def retain_without_removal(self, ids):
    self._refcounts[ids] += 1


def reset_same_namespace(self):
    self._put_free(self._evictable.clear())
    self._index.clear()
    self._is_indexed[:] = False


def index_kept_on_evict(self, num_missing):
    self._put_free(self._evictable.pop(num_missing))


def publish_always(self, step_id):
    step = self._steps.pop(0)
    for each in [step, *self._steps]:
        for reservation in each.reservations:
            reservation._publish()
    self._last_landed = step_id
    for reservation in step.reservations:
        reservation.is_in_flight = False
    for blocks in step.parked:
        blocks.release()


MUTANTS = {
    "frees at once": (StepLedger, "park", free_at_once),
    "evicts parents first": (BlockPool, "release", parents_first),
    "shares within a step": (SequenceBlocks, "seal", seal_and_publish),
    "publishes the planned step": (StepLedger, "complete", publish_always),
    "does not hold anchors": (BlockPool, "register", unpinned_anchors),
    "evicts pinned blocks": (BlockPool, "retain", retain_without_removal),
    "re-indexes after reset": (BlockPool, "reset", reset_same_namespace),
    "keeps keys of evicted blocks": (BlockPool, "_evict", index_kept_on_evict),
    "ignores the adapter": (_keys, "_chain_seed", lambda uid, salt: b""),
    "runs that forget nobody": (ChainRuns, "remove", lambda self, ids: None),
    "runs that end where they like": (_runs, "_num_equal", lambda own, keys, at, most: most),
    "hashes unchained": (_keys, "xxh3_128_digest", lambda data: data[-4:].ljust(16, b"\0")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_programs_catch(world, monkeypatch, name):
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises((AssertionError, NotIdle, LookupError, LeaseUsed)):
        run_all(world)
