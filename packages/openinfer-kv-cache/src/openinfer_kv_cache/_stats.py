"""Counts of one cache."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """One group in one tier. What is counted from the start only grows: rates are differences.

    Attributes:
        name: of the group.
        tier: "device", or the name of a tier, of which only hits are known here.
        num_blocks: blocks it has at the moment.
        num_cached: of these, the ones that a prefix can hit.
        num_evictable: of the cached ones, those that nobody holds.
        num_queries: sequences that looked for a prefix.
        num_queried_tokens: their tokens.
        num_hit_tokens: of those, found here; what a tier has brought counts there for the first
            sequence that begins on it, and then on the device.
        num_evictions: cached blocks given up for others.
        residency_s: seconds between storing and giving up, summed over `num_evictions`.
        num_reused: cached blocks that a sequence found held by nobody.
        reuse_gap_s: seconds since somebody had last used them, summed over `num_reused`.
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
    """A snapshot; blocks are counted once however many sequences share them.

    Attributes:
        num_blocks: in total; free + evictable + used.
        num_free: hold nothing.
        num_evictable: cached, held by nobody.
        num_used: held by sequences, hits, or steps in flight.
        num_pinned: of the used ones, those in the prefix index.
        num_open_leases: spans neither closed nor consumed, hits included.
        num_parked: closed sequences whose blocks wait for a step in flight.
        num_queried_tokens: prompt tokens of opened sequences that looked for a prefix; only grows.
        num_hit_tokens: of those, found in the cache; only grows.
        num_evictions: cached blocks given up for new ones; only grows.
        groups: the same and more by group and tier.
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
