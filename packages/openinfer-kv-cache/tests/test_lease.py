import pytest

from openinfer_kv_cache import BlockPool, CachedLease, LeaseUsed, MutableLease

KEYS = [bytes([i]) * 16 for i in range(8)]


@pytest.fixture
def pool():
    return BlockPool(6)


def test_a_block_goes_from_mutable_to_cached(pool):
    mutable = MutableLease.try_take(pool, 3)
    ids = mutable.ids.tolist()
    sealed, rest = mutable.seal(KEYS[:2], pool.namespace)
    assert (sealed.ids.tolist(), rest.ids.tolist()) == (ids[:2], ids[2:])
    assert len(CachedLease.match(pool, KEYS)) == 0, "sealed blocks are not shared"
    cached = sealed.publish()
    hit = CachedLease.match(pool, KEYS)
    assert hit.ids.tolist() == ids[:2]
    for lease in (hit, cached, rest):
        lease.close()
    assert (pool.num_free, pool.num_evictable) == (4, 2)


def test_every_transition_consumes(pool):
    mutable = MutableLease.try_take(pool, 2)
    sealed, rest = mutable.seal(KEYS[:1], pool.namespace)
    cached = sealed.publish()
    joined = cached.join(CachedLease.match(pool, ()))
    dropped = rest.release_front(1)
    joined.close()
    dropped.close()
    for used in (mutable, sealed, rest, cached, joined, dropped):
        with pytest.raises(LeaseUsed):
            used.close()
        with pytest.raises(LeaseUsed):
            _ = used.ids


def test_duplicates_free_and_anchors_stay(pool):
    leases = [MutableLease.try_take(pool, 2).seal(KEYS[:2], pool.namespace) for _ in range(2)]
    first, second = (sealed.publish() for sealed, _ in leases)
    assert second.ids.tolist() != first.ids.tolist()
    first.close()
    assert pool.num_pinned == 2, "the duplicate's holder holds the indexed blocks"
    second.close()
    assert (pool.num_free, pool.num_evictable, pool.num_pinned) == (4, 2, 0)


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
