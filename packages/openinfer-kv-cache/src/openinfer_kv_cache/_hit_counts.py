"""Counts of prefix queries and hits, by tier, and the statistics by group."""

from collections.abc import Sequence

from openinfer_kv_cache._stats import GroupStats
from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.pool._origins import DEVICE, TierTokens
from openinfer_kv_cache.pool._pool import BlockPool


class HitCounts:
    """Totals since the start.

    Attributes:
        num_queries: number of sequences that looked for a prefix.
        num_queried_tokens: number of their tokens.
        num_hit_tokens: number of tokens found, by tier.
    """

    def __init__(self) -> None:
        self.num_queries = self.num_queried_tokens = 0
        self.num_hit_tokens = {DEVICE: 0}

    def add_query(self, num_tokens: int) -> None:
        """Counts a sequence of `num_tokens` tokens that looks for a prefix."""
        self.num_queries += 1
        self.num_queried_tokens += num_tokens

    def add_hit(self, pool: BlockPool, ids: BlockIds, num_tokens: int) -> TierTokens:
        """Counts a hit and returns its tokens by tier.

        Args:
            pool: the pool of the first group, which is the only group if there are tiers.
            ids: the blocks that were hit in it.
            num_tokens: the number of tokens in these blocks.
        """
        origins = pool.origins
        if origins is None or not num_tokens:
            found = [(DEVICE, num_tokens)]
        else:
            size = num_tokens // len(ids)
            counts = origins.take(ids)
            found = [(tier, num * size) for tier, num in zip(origins.names, counts, strict=True)]
        for tier, num in found:
            self.num_hit_tokens[tier] += num
        return tuple((tier, num) for tier, num in found if num)

    def by_group(self, names: Sequence[str], pools: Sequence[BlockPool]) -> tuple[GroupStats, ...]:
        """Returns each group's statistics on the device, and the first group's in each tier."""
        on_device = [
            GroupStats(
                name=name,
                tier=DEVICE,
                num_blocks=pool.num_blocks,
                num_cached=pool.num_cached,
                num_evictable=pool.num_evictable,
                num_queries=self.num_queries,
                num_queried_tokens=self.num_queried_tokens,
                num_hit_tokens=self.num_hit_tokens[DEVICE],
                num_evictions=pool.num_evictions,
                residency_s=pool.residency_s,
                num_reused=pool.num_reused,
                reuse_gap_s=pool.reuse_gap_s,
            )
            for name, pool in zip(names, pools, strict=True)
        ]
        in_tiers = [
            GroupStats(
                name=names[0],
                tier=tier,
                num_queries=self.num_queries,
                num_queried_tokens=self.num_queried_tokens,
                num_hit_tokens=num_tokens,
            )
            for tier, num_tokens in self.num_hit_tokens.items()
            if tier != DEVICE
        ]
        return (*on_device, *in_tiers)
