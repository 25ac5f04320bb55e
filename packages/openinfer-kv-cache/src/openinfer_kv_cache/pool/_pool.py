"""The blocks of one group: free list, reference counts, prefix index, eviction.

    free ──take──> held, private ──register──> held, indexed ──release──> evictable
     ^                  │   ^                       │                        │  │
     └────release───────┘   └──────withdraw─────────┘ <────────find──────────┘  │
     └──────────evicted by take, reset, or a held block of the same key────────┘

Invariants: a block is free, evictable or held, never two of them; the index names exactly the
indexed blocks; who holds an indexed block holds its parent. From the last it follows that every
evictable block can be had, so `num_available` is exact.
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
    """Bookkeeping over the block ids `[0, num_blocks)`; leases are its careful front.

    Ids given to one call are distinct and in the order of their positions. Not thread-safe: it
    belongs to the step thread.

    Attributes:
        num_blocks: blocks in total.
        namespace: raised by `reset`; keys of an older namespace are not indexed any more.
        num_evictions: cached blocks given up for new ones so far.
        num_reused: indexed blocks that a sequence found held by nobody.
        residency_s: seconds that evicted blocks were indexed, summed.
        reuse_gap_s: seconds that reused blocks had not been used, summed.
        num_open_leases: leases that were neither consumed nor closed.
        now: seconds, for these sums alone; whoever owns the pool keeps it.
        events: told what leaves the index; None: nobody asks.
        origins: which blocks tiers have brought; None: there are no tiers.
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
        """None where blocks are not chained."""
        self._evictable: EvictionQueue | PolicyQueue = EvictionQueue(num_blocks)
        self._policed: PolicyQueue | None = None

    def order_by(self, policy: EvictionPolicy, *, is_chained: bool = True) -> None:
        """Let a policy say what is evicted first, instead of the time of the last use.

        Call it before anything is cached.

        Args:
            policy: of this pool alone.
            is_chained: whether who holds a block holds the one before it.
        """
        assert not self._index, "a policy comes too late"
        self._evictable = self._policed = PolicyQueue(
            len(self._keys), policy, self._index, is_chained=is_chained
        )

    @property
    def num_cached(self) -> int:
        """Indexed blocks."""
        return len(self._index)

    def note_reuse(self, ids: BlockIds) -> None:
        """A sequence begins on indexed blocks that it has just been given a reference to."""
        if not len(ids):
            return
        reused = ids[self._refcounts[ids] == 1]
        used_at = np.maximum(self._used_at[reused], self._stored_at[reused])
        self.num_reused += len(reused)
        self.reuse_gap_s += len(reused) * self.now - float(used_at.sum())

    def note_use(self, ids: BlockIds, use: CacheUse) -> None:
        """A sequence is about to let go of these indexed blocks; the policy is told."""
        self._used_at[ids] = self.now
        if self._policed is not None:
            self._policed.use(ids, use)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return self._num_free

    @property
    def num_evictable(self) -> int:
        """Cached blocks that nobody holds."""
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        """Blocks that `try_take` can hand out."""
        return self._num_free + len(self._evictable)

    @property
    def num_pinned(self) -> int:
        """Cached blocks that somebody holds, each counted once."""
        return len(self._index) - len(self._evictable)

    def try_take(self, num: int) -> BlockIds | None:
        """Hand out `num` private blocks with one reference each, or None when there is no room."""
        if num > self._num_free:
            if num > self.num_available:
                return None
            self._evict(num - self._num_free)
        rest = self._num_free - num
        ids = self._free[rest : self._num_free].copy()  # raises where that is no integer
        self._num_free = rest
        self._refcounts[ids] = 1
        return ids

    def find(self, keys: Sequence[bytes]) -> BlockIds:
        """Ids of the longest indexed prefix of a chain of keys, with a reference added to each."""
        return self._retained(keys, self.count_indexed(keys))

    def count_indexed(self, keys: Sequence[bytes]) -> int:
        """Length of the longest indexed prefix of a chain of keys; touches nothing.

        Logarithmic, because the parent of an indexed block is indexed.
        """
        index = self._index
        return bisect_left(keys, True, key=lambda key: key not in index)

    def is_end(self, keys: BlockKeys, num: int, most: int) -> bool:
        """Whether the longest indexed prefix of the first `most` blocks is known to have `num`.

        Two look-ups tell, because the parent of an indexed block is indexed.
        """
        if num and keys.at(num - 1) not in self._index:
            return False
        return num == most or keys.at(num) not in self._index

    def has(self, key: bytes) -> bool:
        """Whether a block is indexed under the key; touches nothing."""
        return key in self._index

    def lookup(self, keys: Sequence[bytes]) -> BlockIds:
        """Ids of blocks that are all indexed under their keys, with a reference added to each."""
        return self._retained(keys, len(keys))

    def _retained(self, keys: Sequence[bytes], num: int) -> BlockIds:
        """Ids of the first `num` blocks, all indexed, with a reference added to each."""
        if not num:
            return _NO_BLOCKS
        told = _NO_BLOCKS if self._runs is None else self._runs.find(keys, num)
        if len(told) < num:
            others = map(self._index.__getitem__, islice(keys, len(told), num))
            rest = np.fromiter(others, np.int32, num - len(told))
            told = np.concatenate((told, rest))
        self.retain(told)
        return told

    def retain(self, ids: BlockIds) -> None:
        """Add a reference to held or evictable blocks."""
        counts = self._refcounts[ids]
        idle = ids[counts == 0]
        if len(idle):
            self._revive(idle)
        self._refcounts[ids] = counts + 1

    def release(self, ids: BlockIds) -> None:
        """Drop a reference; the last one makes a block evictable if it is indexed, else free."""
        if not len(ids):
            return
        counts = self._refcounts[ids] - 1
        assert counts.min() >= 0, "a block was released more often than held"
        self._refcounts[ids] = counts
        self._rest(ids[counts == 0][::-1])

    def discard(self, ids: BlockIds) -> None:
        """Drop a reference; the last one makes a block free, indexed or not."""
        self.withdraw(ids[self._refcounts[ids] == 1])
        self.release(ids)

    def register(
        self, ids: BlockIds, keys: Sequence[bytes], namespace: int, *, above: int | None = None
    ) -> BlockIds:
        """Index held, private blocks under their keys.

        A key whose indexed block somebody holds keeps that block: ours stays private, and a
        reference to the other is taken so that it stays while the children that we may index live.
        One that nobody holds is freed, and ours takes its place: a duplicate would cost a block
        that nobody has reserved.

        Args:
            ids: in order.
            keys: one a block.
            namespace: in which the keys were sealed.
            above: the indexed block that the first one continues; None: there is none to keep.

        Returns:
            For each block the one that is indexed under its key, ours or the other. All of ours if
            the cache was reset since `namespace`: nothing is indexed then.
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
            self._unindex(idle)  # and no event: the keys are indexed again at once
            self._put_free(idle)

    def withdraw(self, ids: BlockIds) -> None:
        """Take blocks out of the index; held ones are private from then on."""
        keys = self._unindex(ids)
        if self.events is not None:
            self.events.removed(keys)

    def _unindex(self, ids: BlockIds) -> list[bytes]:
        forgotten: list[bytes] = []
        for block in ids[self._is_indexed[ids]].tolist():
            key = self._keys[block]
            assert key is not None, "an indexed block has a key"
            del self._index[key]
            self._keys[block] = None
            forgotten.append(key)
        if self._policed is not None:
            self._policed.discard(ids[self._is_indexed[ids]])
        self._is_indexed[ids] = False
        if self._runs is not None:
            self._runs.forget(ids)
        return forgotten

    def reset(self) -> None:
        """Forget everything cached: evictable blocks are free, held ones private from now on."""
        self.namespace += 1
        self._put_free(self._evictable.clear())
        self._index.clear()
        self._is_indexed[:] = False
        self._keys = [None] * len(self._keys)
        if self._runs is not None:
            self._runs.clear()
        if self.events is not None:
            self.events.cleared()

    def _revive(self, idle: BlockIds) -> None:
        """Evictable blocks are about to be held."""
        self._evictable.remove(idle)

    def _rest(self, idle: BlockIds) -> None:
        """Nobody holds these blocks any more, children before parents."""
        is_indexed = self._is_indexed[idle]
        self._evictable.push(idle[is_indexed])
        self._put_free(idle[~is_indexed])

    def _evict(self, num_missing: int) -> None:
        # One eviction costs as much as many: a large pool gives up to 0.1 % ahead of need.
        num = max(num_missing, min(self.num_blocks >> 10, len(self._evictable)))
        ids = self._evictable.pop(num)
        self.withdraw(ids)
        self._put_free(ids)
        self._count_evicted(ids)

    def _count_evicted(self, ids: BlockIds) -> None:
        self.num_evictions += len(ids)
        self.residency_s += len(ids) * self.now - float(self._stored_at[ids].sum())

    def _put_free(self, ids: BlockIds) -> None:
        self._free[self._num_free : self._num_free + len(ids)] = ids
        self._num_free += len(ids)
