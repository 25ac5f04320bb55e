"""The evictable blocks in a policy's order, leaves first whatever the policy says.

A *leaf* is a block whose key no indexed key continues. Only evictable leaves are in the heap, so
only they can be given up; giving one up may make a leaf of its parent. Children are counted by the
parent's key, not by its block: a block that is computed again takes its twin's place, and its
children stay.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import CacheUse, EvictionPolicy, Standing

_SPARE_ENTRIES = 64


class PolicyQueue:
    """Like `EvictionQueue`, ordered by a policy. It must hear of everything that is indexed.

    Entries are removed lazily: of a block only the entry with the number in `_entry` counts.

    Args:
        num_blocks: ids are below it.
        policy: of this queue alone.
        index: key to block; the pool's own.
        is_chained: whether who holds a block holds the one before it. Where that is not so, as in
            windows, every block is a leaf.
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
        """Blocks of one chain were registered.

        Args:
            own: the blocks, in order.
            indexed: those that the index has for their keys.
            keys: their keys.
            above: key of the block before the first; None: it starts a chain.
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
        """These blocks are indexed no more."""
        for block in ids.tolist():
            self._discard(block)

    def use(self, ids: BlockIds, use: CacheUse) -> None:
        """A sequence is about to let go of these blocks."""
        self._policy.used(_read_only(ids), use)

    def push(self, ids: BlockIds) -> None:
        """Add distinct indexed ids that nobody holds, children before parents."""
        self._is_evictable[ids] = True
        self._size += len(ids)
        for block in ids.tolist():
            if self._key[block] not in self._num_children:
                self._offer(block)

    def remove(self, ids: BlockIds) -> None:
        """Take out distinct ids that are in the queue."""
        self._is_evictable[ids] = False
        self._size -= len(ids)
        for block in ids.tolist():
            self._entry[block] = 0

    def pop(self, num: int) -> BlockIds:
        """Take out `num` ids, at most `len(self)`, in the policy's order of leaves."""
        assert num <= self._size, "more evictions than evictable blocks"
        self._ask_again()
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
        """The time of the policy's clock."""
        return self._policy.clock()

    def peek(self) -> tuple[tuple[float, ...], int]:
        """Score and id of what `pop` would take first; there is something."""
        self._ask_again()
        while True:
            score, entry, block = self._heap[0]
            if self._entry[block] == entry and self._key[block] not in self._num_children:
                return score, block
            if self._entry[block] == entry:
                self._entry[block] = 0
            heappop(self._heap)

    def highest(self, blocks: Iterable[int]) -> Standing:
        """The highest standing of those blocks that are in the queue, and how long it holds."""
        asked = [self._policy.standing(block) for block in blocks if self._is_evictable[block]]
        if not asked:
            return Standing(())
        return Standing(max(each.score for each in asked), min(each.until for each in asked))

    def clear(self) -> BlockIds:
        """Forget every block and return what was in the queue."""
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
            self._offer(parent)

    def _offer(self, block: int) -> None:
        """Puts a leaf where it stands."""
        standing = self._policy.standing(block)
        self._num_entries += 1
        self._entry[block] = self._num_entries
        heappush(self._heap, (standing.score, self._num_entries, block))
        if standing.until < float("inf"):
            heappush(self._rechecks, (standing.until, self._num_entries, block))
        if len(self._heap) > 2 * self._size + _SPARE_ENTRIES:
            entries = self._entry
            self._heap = [each for each in self._heap if entries[each[2]] == each[1]]
            heapify(self._heap)
            self._rechecks = [each for each in self._rechecks if entries[each[2]] == each[1]]
            heapify(self._rechecks)

    def _ask_again(self) -> None:
        """Leaves whose standing was for a time get one of now."""
        if not self._rechecks:
            return
        now = self._policy.clock()
        due: list[int] = []
        while self._rechecks and self._rechecks[0][0] <= now:
            _, entry, block = heappop(self._rechecks)
            if self._entry[block] == entry:
                due.append(block)
        for block in due:
            self._offer(block)


def _read_only(ids: BlockIds) -> BlockIds:
    view = ids.view()
    view.flags.writeable = False
    return view
