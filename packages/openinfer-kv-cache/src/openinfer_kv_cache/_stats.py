"""Counts of one cache."""

from dataclasses import dataclass


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
