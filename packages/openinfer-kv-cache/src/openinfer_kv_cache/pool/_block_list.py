"""The leases of one sequence in one group, in the order of its block table.

    [ cached ............ | sealed ........ | mutable ............... ]
      prefix hit, then      by the newest     being written, and
      published blocks      step, until the   spare capacity
                            next begins

If steps in flight still write to the blocks of a finished request, the step ledger keeps this
object until they have completed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import ANONYMOUS, CacheUse
from openinfer_kv_cache.pool._lease import CachedLease, MutableLease, SealedLease
from openinfer_kv_cache.pool._pool import BlockPool

_NO_BLOCKS = np.empty(0, np.int32)
_NO_GROWTH = (_NO_BLOCKS,)


class Seals(NamedTuple):
    """Progress of a sequence in one step.

    Attributes:
        before: for each group, the number of sealed blocks before the step; in a state group the
            number of planned positions.
        after: for each group, the same after the step.
        num_known: positions below it are computed once the step has completed.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    num_known: int


class SequenceBlocks:
    """Blocks of one sequence in one group, which go from mutable over sealed to cached.

    Attributes:
        tokens_per_block: number of positions in a block.
        keys_per_block: number of keys of the request's chain in a block.
        num_blocks: length of the block table.
        num_sealed: number of leading blocks that are sealed or cached.
        namespace: the pool's namespace when the sequence was opened; after a reset of the cache its
            blocks are no longer indexed.
        num_landed: number of leading blocks whose positions are all computed.
        is_closed: whether the request is over, even if a step in flight still keeps the blocks.
    """

    __slots__ = (
        "_cached",
        "_mutable",
        "_pool",
        "_sealed",
        "_use",
        "is_closed",
        "keys_per_block",
        "namespace",
        "num_blocks",
        "num_landed",
        "num_sealed",
        "tokens_per_block",
    )

    def __init__(
        self, pool: BlockPool, cached: CachedLease, *, tokens_per_block: int, keys_per_block: int
    ) -> None:
        self._pool = pool
        self.tokens_per_block = tokens_per_block
        self.keys_per_block = keys_per_block
        self._cached = cached
        self._sealed: SealedLease | None = None
        self._mutable = MutableLease(pool, _NO_BLOCKS)
        self.namespace = pool.namespace
        self.num_blocks = self.num_sealed = self.num_landed = len(cached)
        self.is_closed = False
        self._use = ANONYMOUS

    @property
    def ids(self) -> BlockIds:
        """[num_blocks] copy of the block table."""
        sealed = _NO_BLOCKS if self._sealed is None else self._sealed.ids
        return np.concatenate((self._cached.ids, sealed, self._mutable.ids))

    @property
    def block_ids(self) -> tuple[BlockIds, ...]:
        """The block table of each group."""
        return (self.ids,)

    @property
    def num_dropped(self) -> tuple[int, ...]:
        """For each group, the number of leading table entries whose blocks were released."""
        return (0,)

    @property
    def num_published(self) -> int:
        """Leading positions whose blocks are indexed, or were released after that by a window."""
        return (self.num_dropped[0] + len(self._cached)) * self.tokens_per_block

    @property
    def is_current(self) -> bool:
        """Whether blocks can still be indexed: the cache was not reset since the start."""
        return self.namespace == self._pool.namespace

    @property
    def capacity(self) -> int:
        """Number of positions that have a block."""
        return self.num_blocks * self.tokens_per_block

    def num_short(self, end: int) -> int:
        """Returns the number of blocks missing for positions below `end`."""
        return max(0, -(-end // self.tokens_per_block) - self.num_blocks)

    def num_to_come(self, end: int) -> int:
        """Returns an upper bound of the further blocks held at any time up to `end`."""
        return self.num_short(end)

    def try_grow(self, end: int) -> tuple[BlockIds, ...] | None:
        """Appends blocks for the positions below `end`. None if there is no room."""
        num = -(-end // self.tokens_per_block) - self.num_blocks
        if num <= 0:
            return _NO_GROWTH
        ids = self._pool.try_take(num)
        if ids is None:
            return None
        self.grow(ids)
        return (ids,)

    def grow(self, ids: BlockIds) -> None:
        """Appends blocks that were just taken from the pool."""
        if len(ids):
            self._mutable.extend(ids)
            self.num_blocks += len(ids)

    def seal_known(self, keys: BlockKeys, num_known: int) -> Seals | None:
        """Seals the blocks that are full of positions below `num_known`, written by this step."""
        start, stop = self.num_sealed, num_known // self.tokens_per_block
        if stop <= start or self.namespace != self._pool.namespace:
            return None
        self.seal(self._chain(keys, start, stop))
        return Seals((start,), (stop,), num_known)

    def settle(self, keys: BlockKeys, num_computed: int, *, is_cacheable: bool) -> None:
        """Records that positions below `num_computed` are computed; indexes new full blocks."""
        num = num_computed // self.tokens_per_block
        if num <= self.num_landed:
            return
        self.num_landed = num
        start = self.num_sealed
        if num > start and is_cacheable and self.namespace == self._pool.namespace:
            self.publish()
            self.seal(self._chain(keys, start, num))
            self.publish()
            self.announce(keys, start, num)

    def seal(self, keys: Sequence[bytes]) -> None:
        """Seals the next `len(keys)` blocks, which the newest step completes."""
        assert self._sealed is None, "an older step's blocks were not published"
        self._sealed, self._mutable = self._mutable.seal(keys, self.namespace)
        self.num_sealed += len(keys)

    def publish(self) -> None:
        """Indexes the sealed blocks."""
        if self._sealed is not None:
            published = self._sealed.publish(above=self._above)
            if len(self._cached):
                published = self._cached.join(published)
            else:
                self._cached.close()
            self._cached, self._sealed = published, None

    @property
    def _above(self) -> int | None:
        """The indexed block that the next indexed block continues; None if there is none."""
        return self._cached.last_anchor

    def attribute_to(self, use: CacheUse) -> None:
        """Sets the use that is reported to the eviction policy."""
        self._use = use

    def announce(self, keys: BlockKeys, start: int, stop: int) -> None:
        """Records events for blocks `[start, stop)`, which are indexed and written."""
        events = self._pool.events
        if events is not None and self.namespace == self._pool.namespace:
            events.landed(keys, start, stop)

    def land_step(self, step_id: int, keys: BlockKeys, seals: Seals) -> None:
        """Records that the step which made these seals has completed."""
        before, after = seals.before[0], seals.after[0]
        if after > before:
            self.num_landed = max(self.num_landed, after)
            self.announce(keys, before, after)

    def release(self) -> None:
        """Releases all blocks, children before parents."""
        if self._sealed is not None:
            self._sealed.close()
        self._cached.note_use(self._use)
        self._cached.close(self._mutable)

    def _chain(self, keys: BlockKeys, start: int, stop: int) -> list[bytes]:
        """Returns the keys of blocks `[start, stop)`, each the key of the block's last position."""
        per = self.keys_per_block
        if per == 1:
            return keys.slice(start, stop)
        return keys.slice(start * per, stop * per)[per - 1 :: per]
