"""Statistics of one cache."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """Statistics of one group in one tier. Totals count from the start and only grow.

    Attributes:
        name: name of the group.
        tier: "device", or the name of a tier. For tiers, only the hits are counted.
        num_blocks: current number of blocks.
        num_cached: number of blocks in the prefix index.
        num_evictable: number of cached blocks that no sequence holds.
        num_queries: total number of sequences that looked for a prefix.
        num_queried_tokens: total number of their tokens.
        num_hit_tokens: total number of tokens found here. A block loaded from a tier counts there
            for the first sequence that uses it, and on the device afterwards.
        num_evictions: total number of evicted blocks.
        residency_s: seconds between indexing and eviction, summed over `num_evictions`.
        num_reused: total number of evictable blocks that a prefix hit took back into use.
        reuse_gap_s: seconds since their last use, summed over `num_reused`.
    """

    name: str
    tier: str
    num_blocks: int = 0
    num_cached: int = 0
    num_evictable: int = 0
    num_queries: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_evictions: int = 0
    residency_s: float = 0.0
    num_reused: int = 0
    reuse_gap_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Snapshot of a cache. A block counts once, however many sequences share it.

    Attributes:
        num_blocks: total number of blocks: free + evictable + used.
        num_free: number of free blocks.
        num_evictable: number of cached blocks that no sequence holds.
        num_used: number of blocks held by sequences, hits or steps in flight.
        num_pinned: number of used blocks that are in the prefix index.
        num_open_leases: number of leases neither closed nor consumed, those of hits included.
        num_parked: number of closed sequences whose blocks wait for a step in flight.
        num_queried_tokens: prompt tokens of opened sequences that looked for a prefix; only grows.
        num_hit_tokens: number of those tokens found in the cache; only grows.
        num_evictions: number of evicted blocks; only grows.
        groups: further statistics by group and tier.
    """

    num_blocks: int
    num_free: int
    num_evictable: int
    num_used: int
    num_pinned: int
    num_open_leases: int
    num_parked: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_evictions: int
    groups: tuple[GroupStats, ...]
