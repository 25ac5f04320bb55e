"""The leases of one sequence, in the order of its block table.

    [ cached ............ | sealed ........ | mutable ............... ]
      hit, then published   by the newest     being written, and
      blocks                step, until the   spare capacity
                            next begins

The object outlives its request when steps in flight still write to it: the step ledger keeps it
until then.
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
    """What one step sealed, or planned, in the blocks of a sequence.

    Attributes:
        before: per group, what it was at: blocks that were sealed; in a state group positions.
        after: per group, what it is at.
        num_known: positions below it are computed once the step has completed.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    num_known: int


class SequenceBlocks:
    """Blocks of one sequence in one group, and their way from mutable to cached.

    Attributes:
        tokens_per_block: positions of one block.
        keys_per_block: keys of the request's chain that one block spans.
        num_blocks: length of the block table.
        num_sealed: leading blocks that are sealed or cached.
        namespace: the pool's when the sequence was opened; blocks are indexed under no other.
        num_landed: leading blocks whose every position is known to be computed.
        is_closed: the request is over, whether or not a step in flight keeps the blocks.
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
        """[num_blocks] the block table, a copy."""
        sealed = _NO_BLOCKS if self._sealed is None else self._sealed.ids
        return np.concatenate((self._cached.ids, sealed, self._mutable.ids))

    @property
    def block_ids(self) -> tuple[BlockIds, ...]:
        """Per group, the block table."""
        return (self.ids,)

    @property
    def num_dropped(self) -> tuple[int, ...]:
        """Per group, leading entries of the block table whose blocks are gone."""
        return (0,)

    @property
    def num_published(self) -> int:
        """Leading positions whose blocks are indexed, or were before a window left them."""
        return (self.num_dropped[0] + len(self._cached)) * self.tokens_per_block

    @property
    def is_current(self) -> bool:
        """Whether blocks can still be indexed: the cache was not reset meanwhile."""
        return self.namespace == self._pool.namespace

    @property
    def capacity(self) -> int:
        """Positions that have a block."""
        return self.num_blocks * self.tokens_per_block

    def num_short(self, end: int) -> int:
        """Blocks missing for the positions below `end`."""
        return max(0, -(-end // self.tokens_per_block) - self.num_blocks)

    def num_to_come(self, end: int) -> int:
        """Blocks beyond those held now that it takes until `end`, one step after another."""
        return self.num_short(end)

    def try_grow(self, end: int) -> tuple[BlockIds, ...] | None:
        """Append blocks for the positions below `end`; None when there is no room."""
        num = -(-end // self.tokens_per_block) - self.num_blocks
        if num <= 0:
            return _NO_GROWTH
        ids = self._pool.try_take(num)
        if ids is None:
            return None
        self.grow(ids)
        return (ids,)

    def grow(self, ids: BlockIds) -> None:
        """Append blocks that were just taken from the pool."""
        if len(ids):
            self._mutable.extend(ids)
            self.num_blocks += len(ids)

    def seal_known(self, keys: BlockKeys, num_known: int) -> Seals | None:
        """Seal the blocks full of positions below `num_known`, which the newest step completes."""
        start, stop = self.num_sealed, num_known // self.tokens_per_block
        if stop <= start or self.namespace != self._pool.namespace:
            return None
        self.seal(self._chain(keys, start, stop))
        return Seals((start,), (stop,), num_known)

    def settle(self, keys: BlockKeys, num_computed: int, *, is_cacheable: bool) -> None:
        """Positions below `num_computed` are computed: index what was not known before."""
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
        """Seal the next `len(keys)` blocks, which the newest step completes."""
        assert self._sealed is None, "an older step's blocks were not published"
        self._sealed, self._mutable = self._mutable.seal(keys, self.namespace)
        self.num_sealed += len(keys)

    def publish(self) -> None:
        """Index what is sealed."""
        if self._sealed is not None:
            published = self._sealed.publish(above=self._above)
            if len(self._cached):
                published = self._cached.join(published)
            else:
                self._cached.close()
            self._cached, self._sealed = published, None

    @property
    def _above(self) -> int | None:
        """The indexed block that the next one to be indexed continues."""
        return self._cached.last_anchor

    def attribute_to(self, use: CacheUse) -> None:
        """Who uses the blocks, for the policy of eviction."""
        self._use = use

    def announce(self, keys: BlockKeys, start: int, stop: int) -> None:
        """Tell who asks for events that blocks `[start, stop)` are indexed and written."""
        events = self._pool.events
        if events is not None and self.namespace == self._pool.namespace:
            events.landed(keys, start, stop)

    def land_step(self, step_id: int, keys: BlockKeys, seals: Seals) -> None:
        """A step has completed that made these seals."""
        before, after = seals.before[0], seals.after[0]
        if after > before:
            self.num_landed = max(self.num_landed, after)
            self.announce(keys, before, after)

    def release(self) -> None:
        """Let go of everything, children before parents."""
        if self._sealed is not None:
            self._sealed.close()
        self._cached.note_use(self._use)
        self._cached.close(self._mutable)

    def _chain(self, keys: BlockKeys, start: int, stop: int) -> list[bytes]:
        """Keys of blocks `[start, stop)`: each that of its last position."""
        per = self.keys_per_block
        if per == 1:
            return keys.slice(start, stop)
        return keys.slice(start * per, stop * per)[per - 1 :: per]
