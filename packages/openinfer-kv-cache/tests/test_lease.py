import pytest

from openinfer_kv_cache import BlockPool, CachedLease, LeaseUsed, MutableLease

KEYS = [bytes([i]) * 16 for i in range(8)]


@pytest.fixture
def pool():
    return BlockPool(6)


def test_the_way_of_a_block(pool):
    mutable = MutableLease.try_take(pool, 3)
    ids = mutable.ids.tolist()
    sealed, rest = mutable.seal(KEYS[:2], pool.namespace)
    assert (sealed.ids.tolist(), rest.ids.tolist()) == (ids[:2], ids[2:])
    assert len(CachedLease.match(pool, KEYS)) == 0, "sealed blocks are not shared"
    cached = sealed.publish()
    hit = CachedLease.match(pool, KEYS)
    assert hit.ids.tolist() == ids[:2]
    kept, back = cached.withdraw(1)
    assert (kept.ids.tolist(), back.ids.tolist()) == (ids[:1], ids[1:2])
    for lease in (hit, kept, back.join(rest)):
        lease.close()
    assert (pool.num_free, pool.num_evictable) == (5, 1)


def test_every_transition_consumes(pool):
    mutable = MutableLease.try_take(pool, 2)
    sealed, rest = mutable.seal(KEYS[:1], pool.namespace)
    cached = sealed.publish()
    joined = cached.join(CachedLease.match(pool, ()))
    kept, back = joined.withdraw(1)
    last = back.join(rest)
    last_kept = last.give_back(1)
    last_kept.close()
    kept.close()
    for used in (mutable, sealed, rest, cached, joined, back, last, last_kept, kept):
        with pytest.raises(LeaseUsed):
            used.close()
        with pytest.raises(LeaseUsed):
            _ = used.ids


def test_unseal_makes_private_again(pool):
    sealed, rest = MutableLease.try_take(pool, 1).seal(KEYS[:1], pool.namespace)
    back = sealed.unseal()
    with pytest.raises(LeaseUsed):
        sealed.publish()
    back.close()
    rest.close()
    assert pool.num_free == 6


def test_duplicates_free_and_anchors_stay(pool):
    leases = [MutableLease.try_take(pool, 2).seal(KEYS[:2], pool.namespace) for _ in range(2)]
    first, second = (sealed.publish() for sealed, _ in leases)
    assert second.ids.tolist() != first.ids.tolist()
    first.close()
    assert pool.num_pinned == 2, "the duplicate's holder holds the indexed blocks"
    second.close()
    assert (pool.num_free, pool.num_evictable, pool.num_pinned) == (4, 2, 0)


def test_withdrawing_a_duplicate_lets_go_of_its_anchor(pool):
    leases = [MutableLease.try_take(pool, 1).seal(KEYS[:1], pool.namespace) for _ in range(2)]
    first, second = (sealed.publish() for sealed, _ in leases)
    first.close()
    kept, back = second.withdraw(1)
    assert (pool.num_pinned, pool.num_evictable) == (0, 1)
    kept.close()
    back.close()


def test_open_leases_are_counted(pool):
    lease = MutableLease.try_take(pool, 2)
    assert pool.num_open_leases == 1
    sealed, rest = lease.seal(KEYS[:1], pool.namespace)
    assert pool.num_open_leases == 2
    sealed.close()
    rest.close()
    assert pool.num_open_leases == 0
    assert MutableLease.try_take(pool, 7) is None
    assert pool.num_open_leases == 0
