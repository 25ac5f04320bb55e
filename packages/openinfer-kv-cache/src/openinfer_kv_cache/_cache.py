"""The cache of one engine: what a scheduler holds."""

import time
from collections.abc import Callable, Sequence

from openinfer_kv_cache._hit_counts import HitCounts
from openinfer_kv_cache._keys import BlockKeys, TokenIds
from openinfer_kv_cache._sequence import PrefixHit, SequenceCache
from openinfer_kv_cache._stats import CacheStats
from openinfer_kv_cache._steps import StepLedger
from openinfer_kv_cache.arena._create_space import checked_groups, make_space
from openinfer_kv_cache.arena._space import PoolSpace
from openinfer_kv_cache.errors import NotIdle, UnsupportedGroup
from openinfer_kv_cache.events._events import CacheEvents, KVEvent
from openinfer_kv_cache.eviction._policy import ANONYMOUS, CacheUse, EvictionPolicy
from openinfer_kv_cache.groups._cache_group import CacheGroup
from openinfer_kv_cache.pool._origins import BlockOrigins
from openinfer_kv_cache.pool._pool import BlockPool


class KVCache:
    """Blocks, prefix index and steps in flight of one engine.

    Everything here runs on the step thread and blocks on nothing.

    Attributes:
        groups: what the blocks hold; block ids come as tuples with one array a group.
        has_prefix_cache: whether blocks are shared and kept; off, `match` finds nothing and every
            block is free as soon as its sequence is over.
        num_tier_blocks: blocks that copies from and to tiers hold; `TierLoads` and `TierSaves`
            keep it. They return without a step.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        *,
        num_blocks: int | None = None,
        num_slabs: int | None = None,
        max_unsettled_tokens: int | None = None,
        has_prefix_cache: bool = True,
        has_events: bool = False,
        keeps_token_ids: bool = False,
        eviction: Callable[[], EvictionPolicy] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            groups: one or several, of distinct names.
            num_blocks: blocks, of one group.
            num_slabs: slabs of `plan_slabs(groups)`, for several groups.
            max_unsettled_tokens: positions of one sequence that steps in flight may hold at most;
                bounds the room that window groups are thought to need. None: whole sequences.
            has_prefix_cache: see the class.
            has_events: keep events for `take_events`, which must then be called now and then.
            keeps_token_ids: let keys keep them, for tiers, which compare them; events imply it.
            eviction: makes the policy of one group; None: least recently used goes first.
            clock: seconds, read once a step, for statistics alone.

        Raises:
            UnsupportedGroup: block sizes that do not go together.
            ValueError: no group, or not exactly one of num_blocks and num_slabs, or one below 1.
        """
        self.groups = checked_groups(groups, has_events=has_events)
        self.has_prefix_cache = has_prefix_cache
        self._space = make_space(self.groups, num_blocks, num_slabs, max_unsettled_tokens)
        if eviction is not None:
            for group, pool in zip(self.groups, self._space.pools, strict=True):
                pool.order_by(eviction(), is_chained=group.kind == "full")
        self._ledger = StepLedger()
        self._events = CacheEvents() if has_events else None
        self._keeps_token_ids = keeps_token_ids or has_events
        if self._events is not None:
            for index, (group, pool) in enumerate(zip(groups, self._space.pools, strict=True)):
                pool.events = self._events.group(index, group)
        self._computing: list[SequenceCache] = []
        """Sequences that may still compute known tokens which others can share."""
        self._clock = clock
        self.num_tier_blocks = 0
        self._hits = HitCounts()

    @property
    def pool(self) -> BlockPool:
        """The blocks of the one full group, for tiers.

        Raises:
            UnsupportedGroup: there are other groups.
        """
        if not isinstance(self._space, PoolSpace):
            other = self.groups[-1]
            raise UnsupportedGroup(other.name, other.kind, "tiers hold one full group alone")
        return self._space.pools[0]

    def add_tiers(self, names: Sequence[str]) -> None:
        """Tiers of these names may bring blocks: hits are counted by where they came from.

        `TierLoads` does this.

        Raises:
            UnsupportedGroup: there are other groups than one full one.
        """
        pool = self.pool
        if pool.origins is None:
            pool.origins = BlockOrigins(pool.num_blocks)
        for name in names:
            pool.origins.name(name)
            self._hits.num_hit_tokens.setdefault(name, 0)

    @property
    def num_blocks(self) -> int:
        """What `num_available_blocks` is out of."""
        return self._space.num_units

    @property
    def num_available_blocks(self) -> int:
        """Blocks a reservation can take now: free and evictable.

        Several groups are counted in slabs, here and wherever room is compared: in how many
        nothing is held. What fits by this count fits; there may be more room in slabs in use.
        """
        return self._space.num_available

    @property
    def num_returning_blocks(self) -> int:
        """Blocks of closed sequences that wait for a step in flight.

        An upper bound of what `num_available_blocks` gains: shared ones are counted too.
        """
        return self._ledger.num_parked_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks, or slabs, that so many positions need."""
        return self._space.num_needed(0, num_tokens)

    def num_blocks_beyond(self, num_hit_tokens: int, end: int) -> int:
        """Blocks, or slabs, that the positions below `end` need besides those of a hit."""
        return self._space.num_needed(num_hit_tokens, end)

    @property
    def num_promised_blocks(self) -> int:
        """Blocks, or slabs, that copies of states leave alone: running sequences may claim them.

        Whoever admits sequences keeps it; 0 at first.
        """
        return self._space.num_promised

    @num_promised_blocks.setter
    def num_promised_blocks(self, num: int) -> None:
        self._space.num_promised = num

    def keys(
        self,
        token_ids: TokenIds | bytes,
        *,
        adapter_uid: bytes = b"",
        salt: bytes = b"",
        boundaries: TokenIds | bytes = b"",
    ) -> BlockKeys:
        """Start a request's keys from its known tokens (uint32 array, or contract column).

        Args:
            token_ids: [num_tokens], or a column.
            adapter_uid: digest of the adapter's bytes; empty for the base model.
            salt: keeps requests with other salts apart.
            boundaries: prompt positions where messages end, hints for resume points; array or
                column.
        """
        keys = BlockKeys(
            self._space.tokens_per_key,
            adapter_uid=adapter_uid,
            salt=salt,
            keeps_token_ids=self._keeps_token_ids,
            boundaries=boundaries,
        )
        keys.extend(token_ids)
        return keys

    def match(self, keys: BlockKeys, *, max_tokens: int | None = None) -> PrefixHit:
        """Pin the longest cached prefix in full blocks, leaving at least one token to compute.

        With several groups: up to the longest position at which all of them can resume.

        Args:
            keys: the request's keys.
            max_tokens: hit no more than so many tokens (prompt logprobs need the rest computed).

        Returns:
            A hit, possibly of no tokens, to be opened or closed by the caller.
        """
        return self._hit(keys, self._max_hit(keys, max_tokens))

    def peek(self, keys: BlockKeys, *, max_tokens: int | None = None, near: int = 0) -> int:
        """Positions that `match` would hit; pins nothing and leaves the order of eviction alone.

        Costs a few lookups however long the prefix is, so a policy may ask for many requests.

        Args:
            keys: the request's keys.
            max_tokens: as for `match`.
            near: what was found for these keys before; saves look-ups where that still holds.
        """
        return self._space.find(keys, self._max_hit(keys, max_tokens), near)

    def leader_block(self, keys: BlockKeys, num_hit_tokens: int) -> tuple[int, bytes] | None:
        """Returns the block that an open sequence is about to compute and this request lacks.

        The request should wait for it. The block ends at a position beyond the hit at which the
        request could start, and the open sequence computes it in a step that has begun or in a
        later one. That step shares it with later steps only, so the block counts until the next
        step has begun. Costs one comparison for each sequence in prefill.

        Args:
            keys: the request's keys.
            num_hit_tokens: tokens that `match` or `peek` found for them.

        Returns:
            Index and key of the block; requests with the same key wait for the same block. None if
            no open sequence computes what the request lacks.
        """
        if not self.has_prefix_cache:
            return None
        for leader in self._computing:
            position = leader.shared_after(num_hit_tokens)
            if position is not None and position < keys.num_tokens:
                block = position // self._space.tokens_per_key - 1
                key = keys.at(block)
                if leader.keys.at(block) == key:
                    return block, key
        return None

    def chunk_end(self, keys: BlockKeys, start: int, end: int) -> int:
        """Where a chunk of known tokens from `start` should end, at most at `end`.

        Before `end` only where a state group wants a copy of its state: a chunk that passes the
        place leaves none.
        """
        return self._space.chunk_end(keys, start, end)

    def open(
        self,
        keys: BlockKeys,
        hit: PrefixHit | None = None,
        *,
        is_cacheable: bool = True,
        use: CacheUse = ANONYMOUS,
    ) -> SequenceCache:
        """Start a sequence on top of a hit.

        Args:
            keys: the request's keys; the sequence extends them while it runs.
            hit: from `match(keys)`, consumed; None: the cache is not read.
            is_cacheable: whether its blocks may be shared with others.
            use: what the policy of eviction is told of the request.

        Raises:
            LeaseUsed: the hit is consumed.
            ValueError: the cache was reset after the hit was made.
        """
        if hit is None:
            hit = self._hit(keys, 0)
        elif hit.namespace != self._space.pools[0].namespace:
            raise ValueError("the cache was reset since the match: close the hit and match again")
        else:
            self._hits.add_query(keys.num_tokens)
        is_cacheable = is_cacheable and self.has_prefix_cache
        num_tokens = hit.num_tokens
        leases = hit.take()
        for lease in leases:
            lease.note_reuse()
        cached_by_tier = self._hits.add_hit(self._space.pools[0], leases[0].ids, num_tokens)
        sequence = SequenceCache(
            self._space,
            self._ledger,
            keys,
            leases,
            num_cached_tokens=num_tokens,
            cached_by_tier=cached_by_tier,
            is_cacheable=is_cacheable,
            use=use,
        )
        if is_cacheable and self._space.shared_after(keys, num_tokens) is not None:
            self._computing.append(sequence)
        return sequence

    def begin_step(self, step_id: int) -> None:
        """Start planning a step; what the step before it sealed can be matched from now on.

        Raises:
            StepOrderError: ids must rise.
        """
        self._ledger.begin(step_id)
        now = self._clock()
        for pool in self._space.pools:
            pool.now = now
        if self._computing:
            self._computing = [each for each in self._computing if each.is_computing]

    def complete_step(self, step_id: int) -> None:
        """The oldest step in flight has run: closed sequences that waited for it are freed.

        Raises:
            StepOrderError: another step is the oldest.
        """
        self._ledger.complete(step_id)

    def cancel_step(self, step_id: int) -> None:
        """Ends the planning of the newest step because it got no reservation; its id is free again.

        Raises:
            StepOrderError: another step is the newest, or the step has reservations.
        """
        self._ledger.cancel(step_id)

    def reset(self) -> None:
        """Forget every cached block; running sequences keep theirs, unshared, to their end."""
        for pool in self._space.pools:
            pool.reset()

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
        pools, num_beside = self._space.pools, self._space.num_free_beside
        num_blocks = sum(pool.num_blocks for pool in pools) + num_beside
        num_available = sum(pool.num_available for pool in pools) + num_beside
        return CacheStats(
            num_blocks=num_blocks,
            num_free=sum(pool.num_free for pool in pools) + num_beside,
            num_evictable=sum(pool.num_evictable for pool in pools),
            num_used=num_blocks - num_available,
            num_pinned=sum(pool.num_pinned for pool in pools),
            num_open_leases=sum(pool.num_open_leases for pool in pools),
            num_parked=self._ledger.num_parked,
            num_queried_tokens=self._hits.num_queried_tokens,
            num_hit_tokens=sum(self._hits.num_hit_tokens.values()),
            num_evictions=sum(pool.num_evictions for pool in pools),
            groups=self._hits.by_group([group.name for group in self.groups], pools),
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

    def _max_hit(self, keys: BlockKeys, max_tokens: int | None) -> int:
        if not self.has_prefix_cache:
            return 0
        limit = keys.num_tokens - 1
        return limit if max_tokens is None else min(limit, max_tokens)

    def _hit(self, keys: BlockKeys, limit: int) -> PrefixHit:
        if keys.tokens_per_block != self._space.tokens_per_key:
            raise ValueError(
                f"keys of {keys.tokens_per_block} tokens a block, and this cache's have "
                f"{self._space.tokens_per_key}: make them by its `keys`"
            )
        num_tokens, leases = self._space.match(keys, limit)
        has_rows = tuple(group.kind == "state" for group in self.groups)
        namespace = self._space.pools[0].namespace
        return PrefixHit(leases, num_tokens=num_tokens, has_rows=has_rows, namespace=namespace)
