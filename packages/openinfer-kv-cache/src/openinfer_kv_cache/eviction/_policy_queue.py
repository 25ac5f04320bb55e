"""Eviction in a policy's order, children always before their parents.

A *leaf* is a block without an indexed child. Only evictable leaves are in the heap, so only leaves
are evicted; evicting one may turn its parent into a leaf. Children are counted by the parent's key,
not by its block id: if a block is computed again and replaces its twin in the index, its children
still count.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import CacheUse, EvictionPolicy, EvictionRank

_SPARE_ENTRIES = 64


class PolicyQueue:
    """Counterpart of `EvictionQueue` with a policy's order. The pool reports every indexed block.

    Heap entries are removed lazily: only the entry whose number is in `_entry` is valid.

    Args:
        num_blocks: upper bound of the block ids.
        policy: serves this queue alone.
        index: the pool's own map from key to block.
        is_chained: whether a sequence that holds a block also holds the block before it. If not, as
            in window groups, every block is a leaf.
    """

    def __init__(
        self,
        num_blocks: int,
        policy: EvictionPolicy,
        index: Mapping[bytes, int],
        *,
        is_chained: bool,
    ) -> None:
        policy.attach(num_blocks)
        self._policy = policy
        self._is_chained = is_chained
        self._index = index
        self._is_evictable = np.zeros(num_blocks, np.bool_)
        self._size = 0
        self._entry = [0] * num_blocks
        self._num_entries = 0
        self._heap: list[tuple[tuple[float, ...], int, int]] = []
        self._rechecks: list[tuple[float, int, int]] = []
        self._key: dict[int, bytes] = {}
        self._above: dict[bytes, bytes] = {}
        self._num_children: dict[bytes, int] = {}

    def __len__(self) -> int:
        return self._size

    def add(
        self, own: Sequence[int], indexed: Sequence[int], keys: Sequence[bytes], above: bytes | None
    ) -> None:
        """Records blocks of one chain that were registered.

        Args:
            own: the sequence's blocks, in order.
            indexed: the blocks that the index has under the same keys.
            keys: the keys.
            above: key of the block before the first; None if the first block starts a chain.
        """
        new = [block for block, other in zip(own, indexed, strict=True) if block == other]
        if new:
            self._policy.stored(_read_only(np.array(new, np.int32)))
        children = self._num_children
        for block, other, key in zip(own, indexed, keys, strict=True):
            if block == other:
                self._key[block] = key
                if above is not None and self._is_chained:
                    self._above[key] = above
                    children[above] = children.get(above, 0) + 1
            above = key

    def discard(self, ids: BlockIds) -> None:
        """Records that these blocks have left the index."""
        for block in ids.tolist():
            self._discard(block)

    def use(self, ids: BlockIds, use: CacheUse) -> None:
        """Reports to the policy that a sequence is about to release these blocks."""
        self._policy.used(_read_only(ids), use)

    def push(self, ids: BlockIds) -> None:
        """Adds distinct indexed ids that became evictable, children before parents."""
        self._is_evictable[ids] = True
        self._size += len(ids)
        for block in ids.tolist():
            if self._key[block] not in self._num_children:
                self._insert(block)

    def remove(self, ids: BlockIds) -> None:
        """Removes distinct ids that are in the queue."""
        self._is_evictable[ids] = False
        self._size -= len(ids)
        for block in ids.tolist():
            self._entry[block] = 0

    def pop(self, num: int) -> BlockIds:
        """Removes and returns `num` ids, at most `len(self)`, in the policy's order of leaves."""
        assert num <= self._size, "more evictions than evictable blocks"
        self._refresh_expired()
        popped: list[int] = []
        while len(popped) < num:
            _, entry, block = heappop(self._heap)
            if self._entry[block] != entry:
                continue
            self._entry[block] = 0
            if self._key[block] in self._num_children:
                continue
            self._is_evictable[block] = False
            popped.append(block)
            self._discard(block)
        self._size -= num
        return np.array(popped, np.int32)

    def now(self) -> float:
        """Returns the time of the policy's clock."""
        return self._policy.clock()

    def peek(self) -> tuple[tuple[float, ...], int]:
        """Returns score and id of the block that `pop` would take next. The queue is not empty."""
        self._refresh_expired()
        while True:
            score, entry, block = self._heap[0]
            if self._entry[block] == entry and self._key[block] not in self._num_children:
                return score, block
            if self._entry[block] == entry:
                self._entry[block] = 0
            heappop(self._heap)

    def highest(self, blocks: Iterable[int]) -> EvictionRank:
        """Returns the highest rank among those of `blocks` that are in the queue."""
        ranks = [self._policy.rank(block) for block in blocks if self._is_evictable[block]]
        if not ranks:
            return EvictionRank(())
        return EvictionRank(max(each.score for each in ranks), min(each.until for each in ranks))

    def clear(self) -> BlockIds:
        """Removes every block and returns the ids that were in the queue."""
        ids = np.flatnonzero(self._is_evictable).astype(np.int32)
        self.remove(ids)
        for kept in (self._heap, self._rechecks, self._key, self._above, self._num_children):
            kept.clear()
        return ids

    def _discard(self, block: int) -> None:
        key = self._key.pop(block, None)
        if key is None:
            return
        above = self._above.pop(key, None)
        if above is None:
            return
        num = self._num_children[above] - 1
        if num:
            self._num_children[above] = num
            return
        del self._num_children[above]
        parent = self._index.get(above)
        if parent is not None and self._is_evictable[parent]:
            self._insert(parent)

    def _insert(self, block: int) -> None:
        """Puts a leaf into the heap at its present rank."""
        rank = self._policy.rank(block)
        self._num_entries += 1
        self._entry[block] = self._num_entries
        heappush(self._heap, (rank.score, self._num_entries, block))
        if rank.until < float("inf"):
            heappush(self._rechecks, (rank.until, self._num_entries, block))
        if len(self._heap) > 2 * self._size + _SPARE_ENTRIES:
            entries = self._entry
            self._heap = [each for each in self._heap if entries[each[2]] == each[1]]
            heapify(self._heap)
            self._rechecks = [each for each in self._rechecks if entries[each[2]] == each[1]]
            heapify(self._rechecks)

    def _refresh_expired(self) -> None:
        """Asks the policy again about leaves whose rank has expired."""
        if not self._rechecks:
            return
        now = self._policy.clock()
        due: list[int] = []
        while self._rechecks and self._rechecks[0][0] <= now:
            _, entry, block = heappop(self._rechecks)
            if self._entry[block] == entry:
                due.append(block)
        for block in due:
            self._insert(block)


def _read_only(ids: BlockIds) -> BlockIds:
    view = ids.view()
    view.flags.writeable = False
    return view
