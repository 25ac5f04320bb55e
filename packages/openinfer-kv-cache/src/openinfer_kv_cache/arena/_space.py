"""Where blocks come from: one pool for one group, or an arena that several groups share."""

from typing import Protocol

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.groups._cache_group import CacheGroup
from openinfer_kv_cache.groups._grouped_blocks import GroupedBlocks
from openinfer_kv_cache.pool._block_list import SequenceBlocks
from openinfer_kv_cache.pool._lease import CachedLease
from openinfer_kv_cache.pool._pool import BlockPool

Blocks = SequenceBlocks | GroupedBlocks


class BlockSpace(Protocol):
    """What `KVCache` asks of its pools; room is counted in blocks, or in slabs that are shared."""

    @property
    def pools(self) -> tuple[BlockPool, ...]:
        """One a group."""
        ...

    @property
    def tokens_per_key(self) -> int:
        """Positions that one key of a request adds to the chain."""
        ...

    @property
    def num_units(self) -> int:
        """Blocks or slabs in total."""
        ...

    @property
    def num_available(self) -> int:
        """Blocks or slabs that are free or can be had at once."""
        ...

    num_promised: int
    """Blocks or slabs that optional copies of states leave alone."""

    @property
    def num_free_beside(self) -> int:
        """Free blocks that no pool counts: those that free slabs would give the first group."""
        ...

    def num_needed(self, start: int, end: int) -> int:
        """Blocks or slabs that positions below `end` need at most, besides a hit of `start`."""
        ...

    def find(self, keys: BlockKeys, limit: int, near: int = 0) -> int:
        """The longest position, at most `limit`, at which a request can begin; pins nothing.

        `near` is what was found before, if anything was: it costs least where that still holds.
        """
        ...

    def match(self, keys: BlockKeys, limit: int) -> tuple[int, tuple[CachedLease, ...]]:
        """The same, and per group a lease of what is needed there."""
        ...

    def open(
        self,
        keys: BlockKeys,
        num_tokens: int,
        cached: tuple[CachedLease, ...],
        *,
        is_cacheable: bool,
    ) -> Blocks:
        """The blocks of a sequence that begins at `num_tokens` on top of a hit's leases."""
        ...

    def chunk_end(self, keys: BlockKeys, start: int, end: int) -> int:
        """Where a chunk should end so that a state can be copied; `end` if nowhere before."""
        ...

    def shared_after(self, keys: BlockKeys, position: int) -> int | None:
        """The first position beyond `position` at which others can resume from these keys."""
        ...


class PoolSpace:
    """One full group, whose blocks are all of the pool."""

    def __init__(self, group: CacheGroup, num_blocks: int) -> None:
        self._pool = BlockPool(num_blocks)
        self.pools = (self._pool,)
        self.tokens_per_key = group.tokens_per_block
        self.num_free_beside = 0
        self.num_promised = 0

    @property
    def num_units(self) -> int:
        """Blocks in total."""
        return self._pool.num_blocks

    @property
    def num_available(self) -> int:
        """Free and evictable blocks."""
        return self._pool.num_available

    def num_needed(self, start: int, end: int) -> int:
        """Blocks of the positions below `end`, without those below `start`."""
        size = self.tokens_per_key
        return max(0, -(-end // size) - -(-start // size))

    def find(self, keys: BlockKeys, limit: int, near: int = 0) -> int:
        """Positions in leading blocks that are indexed."""
        num, num_near = max(0, limit) // self.tokens_per_key, near // self.tokens_per_key
        if num_near <= num and self._pool.is_end(keys, num_near, num):
            return num_near * self.tokens_per_key
        return self._pool.count_indexed(keys.slice(0, num)) * self.tokens_per_key

    def match(self, keys: BlockKeys, limit: int) -> tuple[int, tuple[CachedLease, ...]]:
        """The same, pinned."""
        lease = CachedLease.match(self._pool, keys.slice(0, max(0, limit) // self.tokens_per_key))
        return len(lease) * self.tokens_per_key, (lease,)

    def open(
        self,
        keys: BlockKeys,
        num_tokens: int,
        cached: tuple[CachedLease, ...],
        *,
        is_cacheable: bool,
    ) -> SequenceBlocks:
        """The blocks of a sequence on top of a hit."""
        return SequenceBlocks(
            self._pool, cached[0], tokens_per_block=self.tokens_per_key, keys_per_block=1
        )

    def chunk_end(self, keys: BlockKeys, start: int, end: int) -> int:
        """`end`: a chunk may end anywhere."""
        return end

    def shared_after(self, keys: BlockKeys, position: int) -> int | None:
        """The end of the next block, as long as it is full of known tokens."""
        end = (position // self.tokens_per_key + 1) * self.tokens_per_key
        return end if end <= keys.num_tokens else None
