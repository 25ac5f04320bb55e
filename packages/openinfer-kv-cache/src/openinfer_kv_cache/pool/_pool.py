"""Blocks of one group: free list, reference counts, prefix index and eviction.

    free ──take──> held, private ──register──> held, indexed ──release──> evictable
     ^                  │   ^                       │                        │  │
     └────release───────┘   └──────unindex──────────┘ <────────find──────────┘  │
     └──────────evicted by take, reset, or a held block of the same key────────┘

Invariants: a block is either free, evictable or held. The index contains exactly the indexed
    blocks.
A sequence that holds an indexed block also holds its parent. Therefore every evictable block can be
evicted, and `num_available` is exact.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

import numpy as np

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.events._events import GroupEvents
from openinfer_kv_cache.eviction._lru import BlockIds, EvictionQueue
from openinfer_kv_cache.eviction._policy import CacheUse, EvictionPolicy
from openinfer_kv_cache.eviction._policy_queue import PolicyQueue
from openinfer_kv_cache.pool._origins import BlockOrigins
from openinfer_kv_cache.pool._runs import ChainRuns

_NO_BLOCKS = np.empty(0, np.int32)


class BlockPool:
    """Bookkeeping for the block ids `[0, num_blocks)`. Leases are the safe interface to it.

    Block ids passed to one call are distinct and in the order of their positions. Not thread-safe:
    all calls come from the step thread.

    Attributes:
        num_blocks: total number of blocks.
        namespace: incremented by `reset`; keys of an older namespace are no longer indexed.
        num_evictions: number of cached blocks evicted so far.
        num_reused: number of evictable blocks that a prefix hit took back into use.
        residency_s: seconds between indexing and eviction, summed over evicted blocks.
        reuse_gap_s: seconds since the last use, summed over reused blocks.
        num_open_leases: number of leases that were neither consumed nor closed.
        now: time in seconds for these sums; the owner of the pool updates it.
        events: recorder of blocks that leave the index; None without subscribers.
        origins: the tier that each block came from; None without tiers.
    """

    def __init__(self, num_blocks: int) -> None:
        if not 1 <= num_blocks <= np.iinfo(np.int32).max:
            raise ValueError(f"num_blocks must be at least 1 and fit 31 bits, got {num_blocks}")
        self.num_blocks = num_blocks
        self.namespace = 0
        self.num_evictions = self.num_reused = 0
        self.residency_s = self.reuse_gap_s = self.now = 0.0
        self.num_open_leases = 0
        self.events: GroupEvents | None = None
        self.origins: BlockOrigins | None = None
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = num_blocks
        self._refcounts = np.zeros(num_blocks, np.int32)
        self._is_indexed = np.zeros(num_blocks, np.bool_)
        self._stored_at = np.zeros(num_blocks)
        self._used_at = np.zeros(num_blocks)
        self._keys: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        self._runs: ChainRuns | None = ChainRuns(num_blocks)
        """None if the blocks are not chained."""
        self._evictable: EvictionQueue | PolicyQueue = EvictionQueue(num_blocks)
        self._policed: PolicyQueue | None = None

    def order_by(self, policy: EvictionPolicy, *, is_chained: bool = True) -> None:
        """Makes `policy` decide the eviction order. Call it before anything is cached.

        Args:
            policy: serves this pool alone.
            is_chained: whether a sequence that holds a block also holds the block before it.
        """
        assert not self._index, "the pool has cached blocks already"
        self._evictable = self._policed = PolicyQueue(
            len(self._keys), policy, self._index, is_chained=is_chained
        )

    @property
    def num_cached(self) -> int:
        """Number of indexed blocks."""
        return len(self._index)

    def note_reuse(self, ids: BlockIds) -> None:
        """Counts a prefix hit: a sequence has just taken a reference to these indexed blocks."""
        if not len(ids):
            return
        reused = ids[self._refcounts[ids] == 1]
        used_at = np.maximum(self._used_at[reused], self._stored_at[reused])
        self.num_reused += len(reused)
        self.reuse_gap_s += len(reused) * self.now - float(used_at.sum())

    def note_use(self, ids: BlockIds, use: CacheUse) -> None:
        """Records that a sequence is about to release these indexed blocks; informs the policy."""
        self._used_at[ids] = self.now
        if self._policed is not None:
            self._policed.use(ids, use)

    @property
    def num_free(self) -> int:
        """Number of free blocks."""
        return self._num_free

    @property
    def num_evictable(self) -> int:
        """Number of cached blocks that no sequence holds."""
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        """Number of blocks that `try_take` can return: free and evictable."""
        return self._num_free + len(self._evictable)

    @property
    def num_pinned(self) -> int:
        """Number of cached blocks in use, each counted once."""
        return len(self._index) - len(self._evictable)

    def try_take(self, num: int) -> BlockIds | None:
        """Takes `num` private blocks with one reference each. None if there is no room."""
        if num > self._num_free:
            if num > self.num_available:
                return None
            self._evict(num - self._num_free)
        rest = self._num_free - num
        ids = self._free[rest : self._num_free].copy()  # raises if num is not an integer
        self._num_free = rest
        self._refcounts[ids] = 1
        return ids

    def find(self, keys: Sequence[bytes]) -> BlockIds:
        """Returns the blocks of the longest indexed prefix of a chain of keys, and retains them."""
        return self._retained(keys, self.count_indexed(keys))

    def count_indexed(self, keys: Sequence[bytes]) -> int:
        """Returns the length of the longest indexed prefix of a chain of keys. Changes nothing.

        A binary search, because the parent of an indexed block is indexed.
        """
        index = self._index
        return bisect_left(keys, True, key=lambda key: key not in index)

    def is_end(self, keys: BlockKeys, num: int, most: int) -> bool:
        """Returns whether exactly the first `num` of the first `most` blocks are indexed.

        Two lookups suffice, because the parent of an indexed block is indexed.
        """
        if num and keys.at(num - 1) not in self._index:
            return False
        return num == most or keys.at(num) not in self._index

    def has(self, key: bytes) -> bool:
        """Returns whether a block is indexed under the key. Changes nothing."""
        return key in self._index

    def lookup(self, keys: Sequence[bytes]) -> BlockIds:
        """Returns the blocks of keys that are all indexed, and retains them."""
        return self._retained(keys, len(keys))

    def _retained(self, keys: Sequence[bytes], num: int) -> BlockIds:
        """Returns the blocks of the first `num` keys, which are all indexed, and retains them."""
        if not num:
            return _NO_BLOCKS
        found = _NO_BLOCKS if self._runs is None else self._runs.find(keys, num)
        if len(found) < num:
            others = map(self._index.__getitem__, islice(keys, len(found), num))
            rest = np.fromiter(others, np.int32, num - len(found))
            found = np.concatenate((found, rest))
        self.retain(found)
        return found

    def retain(self, ids: BlockIds) -> None:
        """Adds a reference to held or evictable blocks."""
        counts = self._refcounts[ids]
        idle = ids[counts == 0]
        if len(idle):
            self._take_from_queue(idle)
        self._refcounts[ids] = counts + 1

    def release(self, ids: BlockIds) -> None:
        """Removes a reference. A block without references is evictable if indexed, else free."""
        if not len(ids):
            return
        counts = self._refcounts[ids] - 1
        assert counts.min() >= 0, "a block was released more often than retained"
        self._refcounts[ids] = counts
        self._make_idle(ids[counts == 0][::-1])

    def release_uncached(self, ids: BlockIds) -> None:
        """Removes a reference. A block without references is free, even if it was indexed."""
        self.unindex(ids[self._refcounts[ids] == 1])
        self.release(ids)

    def register(
        self, ids: BlockIds, keys: Sequence[bytes], namespace: int, *, above: int | None = None
    ) -> BlockIds:
        """Indexes held, private blocks under their keys.

        If a key is indexed already, the block is a duplicate. If the indexed block is in use, it
        stays in the index, the new block stays private, and the indexed block is retained, so
        that it lives as long as the children indexed after it. If the indexed block is evictable,
        it is freed and the new block replaces it: keeping both would cost an unreserved block.

        Args:
            ids: blocks in order.
            keys: one for each block.
            namespace: the namespace in which the keys were sealed.
            above: the indexed block that the first block continues; None if there is none.

        Returns:
            For each block, the block that is indexed under its key: the block itself or its
            anchor. `ids` if the cache was reset since `namespace`; nothing is indexed then.
        """
        if namespace != self.namespace:
            return ids
        own = ids.tolist()
        setdefault = self._index.setdefault
        indexed = list(map(setdefault, keys, own))
        if indexed != own:
            self._free_idle(keys)
            indexed = list(map(setdefault, keys, own))
        parent = None if above is None else self._keys[above]
        for block, anchor, key in zip(own, indexed, keys, strict=True):
            if block == anchor:
                self._keys[block] = key
        if self._policed is not None:
            self._policed.add(own, indexed, keys, parent)
        if indexed == own:
            self._mark_indexed(ids)
            if self._runs is not None:
                self._runs.add(ids, keys, above, len(self._index))
            return ids
        anchors = np.array(indexed, np.int32)
        self._mark_indexed(ids[anchors == ids])
        self.retain(anchors[anchors != ids])
        return anchors

    def _mark_indexed(self, ids: BlockIds) -> None:
        self._is_indexed[ids] = True
        self._stored_at[ids] = self.now
        if self.origins is not None:
            self.origins.clear(ids)

    def _free_idle(self, keys: Sequence[bytes]) -> None:
        """Frees the evictable blocks that are indexed under `keys`."""
        twins = [block for key in keys if (block := self._index.get(key)) is not None]
        if not twins:
            return
        ids = np.array(twins, np.int32)
        idle = ids[self._refcounts[ids] == 0]
        if len(idle):
            self._evictable.remove(idle)
            self._unindex(idle)  # without an event: the keys are indexed again at once
            self._put_free(idle)

    def unindex(self, ids: BlockIds) -> None:
        """Removes blocks from the index; blocks in use become private."""
        keys = self._unindex(ids)
        if self.events is not None:
            self.events.removed(keys)

    def _unindex(self, ids: BlockIds) -> list[bytes]:
        removed: list[bytes] = []
        for block in ids[self._is_indexed[ids]].tolist():
            key = self._keys[block]
            assert key is not None, "an indexed block has a key"
            del self._index[key]
            self._keys[block] = None
            removed.append(key)
        if self._policed is not None:
            self._policed.discard(ids[self._is_indexed[ids]])
        self._is_indexed[ids] = False
        if self._runs is not None:
            self._runs.remove(ids)
        return removed

    def reset(self) -> None:
        """Resets the prefix cache: evictable blocks become free, blocks in use private."""
        self.namespace += 1
        self._put_free(self._evictable.clear())
        self._index.clear()
        self._is_indexed[:] = False
        self._keys = [None] * len(self._keys)
        if self._runs is not None:
            self._runs.clear()
        if self.events is not None:
            self.events.cleared()

    def _take_from_queue(self, idle: BlockIds) -> None:
        """Removes evictable blocks from the eviction queue: they are about to be used."""
        self._evictable.remove(idle)

    def _make_idle(self, idle: BlockIds) -> None:
        """Makes blocks without references evictable or free; children come before parents."""
        is_indexed = self._is_indexed[idle]
        self._evictable.push(idle[is_indexed])
        self._put_free(idle[~is_indexed])

    def _evict(self, num_missing: int) -> None:
        # A call costs the same for one block and for many, so evict up to 0.1 % of a large pool
        # ahead of need.
        num = max(num_missing, min(self.num_blocks >> 10, len(self._evictable)))
        ids = self._evictable.pop(num)
        self.unindex(ids)
        self._put_free(ids)
        self._count_evicted(ids)

    def _count_evicted(self, ids: BlockIds) -> None:
        self.num_evictions += len(ids)
        self.residency_s += len(ids) * self.now - float(self._stored_at[ids].sum())

    def _put_free(self, ids: BlockIds) -> None:
        self._free[self._num_free : self._num_free + len(ids)] = ids
        self._num_free += len(ids)
