"""Window groups: blocks of a sequence that keeps only its newest positions."""

from typing import final

import numpy as np

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.groups._resume_points import ResumePoints
from openinfer_kv_cache.pool._block_list import Seals, SequenceBlocks
from openinfer_kv_cache.pool._lease import CachedLease
from openinfer_kv_cache.pool._pool import BlockPool


@final
class WindowBlocks(SequenceBlocks):
    """Blocks of one sequence in a window group.

        [ released ... | cached | sealed | mutable ]
          before the     as in a full group
          window

    Table entry i is always for positions `[i, i + 1) * tokens_per_block`; `ids` begins with entry
    `num_dropped[0]`. A block is released when the newest settled position has moved `window` beyond
    it. No step in flight reads it then, because steps in flight start after the settled positions.
    The block stays cached if a resume point needs it, otherwise it becomes free.
    """

    __slots__ = ("_max_held", "_num_dropped", "_points", "_window")

    def __init__(
        self,
        pool: BlockPool,
        cached: CachedLease,
        points: ResumePoints,
        *,
        window: int,
        max_held: int,
        tokens_per_block: int,
        keys_per_block: int,
        num_tokens: int,
    ) -> None:
        super().__init__(
            pool, cached, tokens_per_block=tokens_per_block, keys_per_block=keys_per_block
        )
        self._window = window
        self._max_held = max_held
        self._points = points
        self._num_dropped = num_tokens // tokens_per_block - len(cached)
        self.num_blocks = self.num_sealed = self.num_landed = num_tokens // tokens_per_block

    @property
    def num_dropped(self) -> tuple[int, ...]:
        """See `SequenceBlocks.num_dropped`."""
        return (self._num_dropped,)

    def num_to_come(self, end: int) -> int:
        """See `SequenceBlocks.num_to_come`; blocks that the window passes make room for others."""
        num_held = self.num_blocks - self._num_dropped
        return max(0, min(self.num_short(end), self._max_held - num_held))

    def settle(self, keys: BlockKeys, num_computed: int, *, is_cacheable: bool) -> None:
        """See `SequenceBlocks.settle`; also releases the blocks that the window has passed."""
        super().settle(keys, num_computed, is_cacheable=is_cacheable)
        self._release_passed(num_computed)

    def land_step(self, step_id: int, keys: BlockKeys, seals: Seals) -> None:
        """See `SequenceBlocks.land_step`; also releases the blocks that the window has passed."""
        super().land_step(step_id, keys, seals)
        self.num_landed = max(self.num_landed, seals.num_known // self.tokens_per_block)
        self._release_passed(seals.num_known)

    def _release_passed(self, num_computed: int) -> None:
        size = self.tokens_per_block
        first = max(0, num_computed - self._window + 1) // size
        num = min(first, self.num_landed) - self._num_dropped
        if num <= 0:
            return
        num_cached = min(num, len(self._cached))
        if num_cached:
            starts = range(self._num_dropped * size, (self._num_dropped + num_cached) * size, size)
            is_kept = np.array([self._is_needed(start) for start in starts], np.bool_)
            self._cached = self._cached.release_front(is_kept)
        if num > num_cached:
            assert self._sealed is None, "a landed block was not published"
            self._mutable = self._mutable.release_front(num - num_cached)
        self._num_dropped += num
        self.num_sealed = max(self.num_sealed, self._num_dropped)

    def _is_needed(self, start: int) -> bool:
        """Returns whether a resume point's window includes the block that begins at `start`."""
        point = self._points.after(start)
        return point is not None and point < start + self.tokens_per_block + self._window - 1
