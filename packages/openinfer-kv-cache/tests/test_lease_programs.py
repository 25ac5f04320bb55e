"""Random programs over leases against a naive oracle that counts the holders of each block."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openinfer_kv_cache import BlockPool, CachedLease, LeaseUsed, MutableLease, SealedLease
from openinfer_testing.programs import random_programs

NUMBER = st.integers(0, 63)
PROGRAMS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=60)
NUM_OPERATIONS = 7


class Chain:
    """The leases of one sequence: [cached | sealed | mutable] over the blocks of one key chain."""

    def __init__(self, name, cached, mutable):
        self.name, self.cached, self.sealed, self.mutable = name, cached, None, mutable

    @property
    def leases(self):
        return [lease for lease in (self.cached, self.sealed, self.mutable) if lease is not None]

    def keys(self, start, stop):
        return [f"{self.name}:{i}".encode() for i in range(start, stop)]


class LeaseWorld:
    """Leases that are checked against plain counting after every operation."""

    def __init__(self, num_blocks):
        self.pool = BlockPool(num_blocks)
        self.chains: list[Chain] = []
        self.used: list = []
        self.num_reset = 0
        self.operations = (
            self.open,
            self.grow,
            self.seal,
            self.publish,
            self.publish,
            self.close,
            self.reset,
        )
        assert len(self.operations) == NUM_OPERATIONS

    def run(self, program):
        for operation, a, b in program:
            self.operations[operation % NUM_OPERATIONS](a, b)
            self.check()
        while self.chains:
            self.close(0, 0)
            self.check()
        pool = self.pool
        assert (pool.num_open_leases, pool.num_pinned) == (0, 0)
        assert pool.num_free + pool.num_evictable == pool.num_blocks

    def open(self, a, b):
        if len(self.chains) == 3:
            return
        name = "ab"[a % 2]
        keys = [f"{name}:{i}".encode() for i in range(b % 4)]
        expected = 0
        while expected < len(keys) and keys[expected] in self.pool._index:
            expected += 1
        cached = CachedLease.match(self.pool, keys)
        assert len(cached) == expected
        self.chains.append(Chain(name, cached, MutableLease.try_take(self.pool, 0)))

    def pick(self, a, suits=lambda chain: True):
        chains = [chain for chain in self.chains if suits(chain)]
        return chains[a % len(chains)] if chains else None

    def grow(self, a, b):
        chain = self.pick(a)
        if chain is None:
            return
        held, num, room = self.held_counts(), 1 + b % 3, self.pool.num_available
        assert room == self.pool.num_blocks - len(held)
        lease = MutableLease.try_take(self.pool, num)
        assert (lease is None) == (num > room)
        if lease is not None:
            assert not set(lease.ids.tolist()) & set(held), "a block has two owners"
            self.used.append(lease)
            chain.mutable.extend(lease._consume())

    def seal(self, a, b):
        chain = self.pick(a, lambda chain: chain.sealed is None and len(chain.mutable))
        if chain is not None:
            num, start = 1 + b % len(chain.mutable), len(chain.cached)
            self.used.append(chain.mutable)
            chain.sealed, chain.mutable = chain.mutable.seal(
                chain.keys(start, start + num), self.pool.namespace
            )

    def publish(self, a, b):
        chain = self.pick(a, lambda chain: chain.sealed is not None)
        if chain is not None:
            self.used += [chain.cached, chain.sealed]
            chain.cached = chain.cached.join(chain.sealed.publish())
            chain.sealed = None

    def close(self, a, b):
        chain = self.pick(a)
        if chain is not None:
            self.chains.remove(chain)
            for lease in reversed(chain.leases):
                lease.close()
                self.used.append(lease)

    def reset(self, a, b):
        if a % 8 == 0:
            self.pool.reset()
            # Chains from before the reset are no longer indexed, so they get new names.
            self.num_reset += 1
            for chain in self.chains:
                chain.name += f"/{self.num_reset}"
                if chain.sealed is not None:
                    self.used += [chain.sealed, chain.cached]
                    chain.cached = chain.cached.join(chain.sealed.publish())
                    chain.sealed = None

    def held_counts(self):
        counts = Counter()
        for chain in self.chains:
            for lease in chain.leases:
                counts.update(lease.ids.tolist())
                if isinstance(lease, CachedLease):
                    pairs = zip(lease.ids.tolist(), lease._anchors.tolist(), strict=True)
                    counts.update(anchor for own, anchor in pairs if anchor != own)
        return counts

    def check(self):
        pool, counts = self.pool, self.held_counts()
        assert pool._refcounts.tolist() == [counts[b] for b in range(pool.num_blocks)]
        free = pool._free[: pool.num_free].tolist()
        indexed = set(pool._index.values())
        assert len(set(free)) == len(free), "a block is free twice"
        assert not set(free) & (set(counts) | indexed), "a free block is known to somebody"
        assert pool.num_evictable == len(indexed - set(counts))
        assert pool.num_pinned == len(indexed & set(counts))
        assert set(free) | set(counts) | indexed == set(range(pool.num_blocks)), "a block is lost"
        private = [
            block
            for chain in self.chains
            for lease in (chain.sealed, chain.mutable)
            if lease is not None
            for block in lease.ids.tolist()
        ]
        assert all(counts[block] == 1 for block in private), "a private block is shared"
        assert not set(private) & indexed, "a private block is indexed"
        assert pool.num_open_leases == sum(len(chain.leases) for chain in self.chains)
        for lease in self.used[-4:]:
            with pytest.raises(LeaseUsed):
                _ = lease.ids


def run_all(num):
    programs = random_programs(num, num_operations=NUM_OPERATIONS, length=80)
    for seed, program in enumerate(programs):
        LeaseWorld([4, 9, 16][seed % 3]).run(program)


@settings(
    max_examples=500,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(program=PROGRAMS, num_blocks=st.sampled_from([4, 9]))
def test_leases_agree_with_the_oracle(program, num_blocks):
    LeaseWorld(num_blocks).run(program)


@pytest.mark.long
def test_long_programs_agree_with_the_oracle():
    run_all(600)


def no_consume(self):
    return self.ids


def forget_anchor(self):
    self._pool.release(self._consume())


MUTANTS = {
    "hands out twice": (BlockPool, "_put_free", lambda self, ids: None),
    "a handle survives": (SealedLease, "_consume", no_consume),
    "anchors leak": (CachedLease, "close", forget_anchor),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_catches(monkeypatch, name):
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises((AssertionError, LeaseUsed, pytest.fail.Exception, IndexError, ValueError)):
        run_all(100)
