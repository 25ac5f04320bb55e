"""`PoolSpace`: the source of the blocks of a cache with one full group."""

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.groups._cache_group import CacheGroup
from openinfer_kv_cache.groups._grouped_blocks import GroupedBlocks
from openinfer_kv_cache.pool._block_list import SequenceBlocks
from openinfer_kv_cache.pool._lease import CachedLease
from openinfer_kv_cache.pool._pool import BlockPool

Blocks = SequenceBlocks | GroupedBlocks


class PoolSpace:
    """Space of a cache with one full group: a single pool. Room is counted in blocks."""

    def __init__(self, group: CacheGroup, num_blocks: int) -> None:
        self._pool = BlockPool(num_blocks)
        self.pools = (self._pool,)
        self.tokens_per_key = group.tokens_per_block
        self.num_free_beside = 0
        self.num_promised = 0

    @property
    def num_units(self) -> int:
        """Total number of blocks."""
        return self._pool.num_blocks

    @property
    def num_available(self) -> int:
        """Free and evictable blocks."""
        return self._pool.num_available

    def num_needed(self, start: int, end: int) -> int:
        """Returns the blocks for positions `[start, end)`."""
        size = self.tokens_per_key
        return max(0, -(-end // size) - -(-start // size))

    def find(self, keys: BlockKeys, limit: int, near: int = 0) -> int:
        """Returns the number of leading positions whose blocks are indexed. Pins nothing.

        Args:
            keys: the request's keys.
            limit: upper bound of the result.
            near: the result of an earlier call, or 0. The call is cheapest if that still holds.
        """
        num, num_near = max(0, limit) // self.tokens_per_key, near // self.tokens_per_key
        if num_near <= num and self._pool.is_end(keys, num_near, num):
            return num_near * self.tokens_per_key
        return self._pool.count_indexed(keys.slice(0, num)) * self.tokens_per_key

    def match(self, keys: BlockKeys, limit: int) -> tuple[int, tuple[CachedLease, ...]]:
        """Returns the result of `find`, and a lease of those blocks."""
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
        """Returns the blocks of a sequence, after the lease of a hit."""
        return SequenceBlocks(
            self._pool, cached[0], tokens_per_block=self.tokens_per_key, keys_per_block=1
        )

    def chunk_end(self, keys: BlockKeys, start: int, end: int) -> int:
        """Returns `end`: a chunk may end anywhere."""
        return end

    def shared_after(self, keys: BlockKeys, position: int) -> int | None:
        """Returns the end of the next block, or None if it is not full of known tokens."""
        end = (position // self.tokens_per_key + 1) * self.tokens_per_key
        return end if end <= keys.num_tokens else None
