"""Eviction in least-recently-used order, the default.

Children are always evicted before their parents, without a check: a sequence holds every block
before the ones it uses and releases a block before its parent, so a parent is always queued after
its children.
"""

import numpy as np
import numpy.typing as npt

BlockIds = npt.NDArray[np.int32]
"""[num_blocks] block ids."""

_NOWHERE = np.int64(2**62)
_MIN_WINDOW = 32


class EvictionQueue:
    """Queue of evictable block ids, oldest first, with removal from the middle. Vectorised.

    Entries are removed lazily: only the entry at index `_place[id]` is valid, and every other entry
    of that id is stale. The buffer has two entries for each block, so compaction is amortised O(1).
    """

    __slots__ = ("_entries", "_head", "_place", "_size", "_tail")

    def __init__(self, num_blocks: int) -> None:
        self._entries = np.zeros(2 * num_blocks, np.int32)
        self._place = np.full(num_blocks, _NOWHERE, np.int64)
        self._head = 0
        self._tail = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, ids: BlockIds) -> None:
        """Appends distinct ids that are not in the queue; the first is evicted first."""
        if not len(ids):
            return
        if self._tail + len(ids) > len(self._entries):
            self._compact()
        end = self._tail + len(ids)
        self._entries[self._tail : end] = ids
        self._place[ids] = np.arange(self._tail, end)
        self._tail = end
        self._size += len(ids)

    def remove(self, ids: BlockIds) -> None:
        """Removes distinct ids that are in the queue."""
        self._place[ids] = _NOWHERE
        self._size -= len(ids)

    def pop(self, num: int) -> BlockIds:
        """Removes and returns the `num` oldest ids; `num` is at most `len(self)`."""
        assert num <= self._size, "more evictions than evictable blocks"
        popped: list[BlockIds] = []
        missing = num
        while missing:
            stop = min(self._head + max(2 * missing, _MIN_WINDOW), self._tail)
            window = self._entries[self._head : stop]
            live = np.flatnonzero(self._place[window] == np.arange(self._head, stop))[:missing]
            popped.append(window[live])
            missing -= len(live)
            self._head = stop if missing else self._head + int(live[-1]) + 1
        ids = np.concatenate(popped) if popped else np.empty(0, np.int32)
        self.remove(ids)
        return ids

    def peek(self) -> tuple[tuple[float, ...], int]:
        """Returns an empty score and the id that `pop` would take next. The queue is not empty."""
        assert self._size, "nothing is evictable"
        while True:
            block = int(self._entries[self._head])
            if self._place[block] == self._head:
                return (), block
            self._head += 1

    def clear(self) -> BlockIds:
        """Empties the queue and returns its ids in order."""
        return self.pop(self._size)

    def _compact(self) -> None:
        window = self._entries[self._head : self._tail]
        live = window[self._place[window] == np.arange(self._head, self._tail)]
        self._entries[: len(live)] = live
        self._place[live] = np.arange(len(live))
        self._head, self._tail = 0, len(live)
