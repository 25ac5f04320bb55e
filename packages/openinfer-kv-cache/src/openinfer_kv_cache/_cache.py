"""The cache of one engine: what a scheduler holds."""

from collections.abc import Sequence

from openinfer_kv_cache._events import CacheEvents, KVEvent
from openinfer_kv_cache._group import CacheGroup
from openinfer_kv_cache._keys import BlockKeys, TokenIds
from openinfer_kv_cache._lease import CachedLease
from openinfer_kv_cache._pool import BlockPool
from openinfer_kv_cache._sequence import PrefixHit, SequenceCache
from openinfer_kv_cache._stats import CacheStats
from openinfer_kv_cache._steps import StepLedger
from openinfer_kv_cache.errors import NotIdle, UnsupportedGroup


class KVCache:
    """Blocks, prefix index and steps in flight of one engine.

    Everything here runs on the step thread and blocks on nothing.

    Attributes:
        groups: what the blocks hold; block ids come as tuples with one array a group.
        has_prefix_cache: whether blocks are shared and kept; off, `match` finds nothing and every
            block is free as soon as its sequence is over.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        *,
        num_blocks: int,
        has_prefix_cache: bool = True,
        has_events: bool = False,
    ) -> None:
        """Start empty.

        Args:
            groups: one group of kind "full".
            num_blocks: blocks of that group.
            has_prefix_cache: see the class.
            has_events: keep events for `take_events`, which must then be called now and then.

        Raises:
            UnsupportedGroup: another kind, or more than one group.
            ValueError: no group, or num_blocks < 1.
        """
        if not groups:
            raise ValueError("a cache needs a group")
        for group in groups:
            if group.kind != "full":
                raise UnsupportedGroup(group.name, group.kind, 'only kind "full" is kept')
        for group in groups[1:]:
            raise UnsupportedGroup(group.name, group.kind, "only one group is kept")
        self.groups = tuple(groups)
        self.has_prefix_cache = has_prefix_cache
        self._tokens_per_block = groups[0].tokens_per_block
        self._pool = BlockPool(num_blocks)
        self._ledger = StepLedger()
        self._events = CacheEvents() if has_events else None
        if self._events is not None:
            self._pool.events = self._events.group(0, groups[0])
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

    @property
    def num_available_blocks(self) -> int:
        """Blocks a reservation can take now: free and evictable."""
        return self._pool.num_available

    @property
    def num_returning_blocks(self) -> int:
        """Blocks of closed sequences that wait for a step in flight.

        An upper bound of what `num_available_blocks` gains: shared ones are counted too.
        """
        return self._ledger.num_parked_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many positions need."""
        return -(-num_tokens // self._tokens_per_block)

    def keys(
        self, token_ids: TokenIds | bytes, *, adapter_uid: bytes = b"", salt: bytes = b""
    ) -> BlockKeys:
        """Start a request's keys from its known tokens (uint32 array, or contract column)."""
        keys = BlockKeys(
            self._tokens_per_block,
            adapter_uid=adapter_uid,
            salt=salt,
            keeps_token_ids=self._events is not None,
        )
        keys.extend(token_ids)
        return keys

    def match(self, keys: BlockKeys, *, max_tokens: int | None = None) -> PrefixHit:
        """Pin the longest cached prefix in full blocks, leaving at least one token to compute.

        Args:
            keys: the request's keys.
            max_tokens: hit no more than so many tokens (prompt logprobs need the rest computed).

        Returns:
            A hit, possibly of no tokens, to be opened or closed by the caller.
        """
        num = self._max_hit_blocks(keys, max_tokens)
        lease = CachedLease.match(self._pool, keys.slice(0, num))
        return PrefixHit(lease, self._tokens_per_block, self._epoch())

    def peek(self, keys: BlockKeys, *, max_tokens: int | None = None) -> int:
        """Positions that `match` would hit; pins nothing and leaves the order of eviction alone.

        Costs a few lookups however long the prefix is, so a policy may ask for many requests.

        Args:
            keys: the request's keys.
            max_tokens: as for `match`.
        """
        num = self._max_hit_blocks(keys, max_tokens)
        return self._pool.count_indexed(keys.slice(0, num)) * self._tokens_per_block

    def open(
        self, keys: BlockKeys, hit: PrefixHit | None = None, *, is_cacheable: bool = True
    ) -> SequenceCache:
        """Start a sequence on top of a hit.

        Args:
            keys: the request's keys; the sequence extends them while it runs.
            hit: from `match(keys)`, consumed; None: the cache is not read.
            is_cacheable: whether its blocks may be shared with others.

        Raises:
            LeaseUsed: the hit is consumed.
            ValueError: the hit was made before a reset or the revert of a step.
        """
        if hit is None:
            cached = CachedLease.match(self._pool, ())
        elif hit.epoch != self._epoch():
            raise ValueError("the cache was reset or a step reverted: close the hit, match again")
        else:
            cached = hit.take()
            self._num_queried_tokens += keys.num_tokens
            self._num_hit_tokens += len(cached) * self._tokens_per_block
        return SequenceCache(
            self._pool,
            self._ledger,
            keys,
            cached,
            is_cacheable=is_cacheable and self.has_prefix_cache,
        )

    def begin_step(self, step_id: int) -> None:
        """Start planning a step; what the step before it sealed can be matched from now on.

        Raises:
            StepOrderError: ids must rise.
        """
        self._ledger.begin(step_id)

    def complete_step(self, step_id: int) -> None:
        """The oldest step in flight has run: closed sequences that waited for it are freed.

        Raises:
            StepOrderError: another step is the oldest.
        """
        self._ledger.complete(step_id)

    def revert_step(self, step_id: int) -> None:
        """The newest step in flight will not run: all its reservations are undone.

        Close the sequences that were opened in it before (`in_flight_until=step_id`): they may
        stand on blocks that will not be written either.

        Raises:
            StepOrderError: another step is the newest, or a sequence opened in it is open.
        """
        self._ledger.revert(step_id)

    def reset(self) -> None:
        """Forget every cached block; running sequences keep theirs, unshared, to their end."""
        self._pool.reset()

    def take_events(self) -> list[KVEvent]:
        """What became of cached blocks since the last call, in order.

        Raises:
            ValueError: the cache was made without events.
        """
        if self._events is None:
            raise ValueError("this cache keeps no events: make it with has_events=True")
        return self._events.take()

    def stats(self) -> CacheStats:
        """Count what there is."""
        pool = self._pool
        return CacheStats(
            num_blocks=pool.num_blocks,
            num_free=pool.num_free,
            num_evictable=pool.num_evictable,
            num_used=pool.num_blocks - pool.num_available,
            num_pinned=pool.num_pinned,
            num_open_leases=pool.num_open_leases,
            num_parked=self._ledger.num_parked,
            num_queried_tokens=self._num_queried_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_evictions=pool.num_evictions,
        )

    def assert_idle(self) -> None:
        """Check that nothing is held: free + evictable = total, no lease, no pin, no step.

        Raises:
            NotIdle: with the counts.
        """
        stats = self.stats()
        num_steps = self._ledger.num_in_flight
        if stats.num_used or stats.num_pinned or stats.num_open_leases or num_steps:
            raise NotIdle(f"{num_steps} steps in flight, {stats}")

    def _max_hit_blocks(self, keys: BlockKeys, max_tokens: int | None) -> int:
        limit = max(0, keys.num_tokens - 1)
        if max_tokens is not None:
            limit = min(limit, max_tokens)
        return limit // self._tokens_per_block if self.has_prefix_cache else 0

    def _epoch(self) -> tuple[int, int]:
        return (self._pool.namespace, self._ledger.num_reverts)
