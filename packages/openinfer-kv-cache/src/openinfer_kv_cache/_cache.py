"""`KVCache`: the logical KV cache of one engine, the interface that a scheduler uses."""

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

    All calls come from the step thread. None of them blocks.

    Attributes:
        groups: the cache groups. Block ids are tuples with one array for each group.
        has_prefix_cache: whether blocks are shared and kept. If not, `match` finds nothing, and the
            blocks of a sequence become free when it ends.
        num_tier_blocks: number of blocks held by copies from and to tiers, maintained by
            `TierLoads` and `TierSaves`. They are released without a step.
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
        """Creates an empty cache.

        Args:
            groups: one or several groups with distinct names.
            num_blocks: number of blocks, for one group.
            num_slabs: number of slabs of `plan_slabs(groups)`, for several groups.
            max_unsettled_tokens: upper bound of the positions of one sequence in steps in flight,
                which bounds the blocks that window groups need. None: no bound.
            has_prefix_cache: see the class.
            has_events: whether to record events; `take_events` must then be called regularly.
            keeps_token_ids: whether keys keep the token ids; tiers compare them. Events imply it.
            eviction: creates the eviction policy of one group. None: least recently used.
            clock: returns seconds; read once a step, for statistics only.

        Raises:
            UnsupportedGroup: the block sizes do not fit together.
            ValueError: there is no group, or not exactly one of `num_blocks` and `num_slabs` is
                given, or it is below 1.
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
        """Sequences that may still compute known tokens that other sequences can share."""
        self._clock = clock
        self.num_tier_blocks = 0
        self._hits = HitCounts()

    @property
    def pool(self) -> BlockPool:
        """The pool of the single full group, for tiers.

        Raises:
            UnsupportedGroup: the cache has other groups.
        """
        if not isinstance(self._space, PoolSpace):
            other = self.groups[-1]
            raise UnsupportedGroup(other.name, other.kind, "tiers support a single full group only")
        return self._space.pools[0]

    def add_tiers(self, names: Sequence[str]) -> None:
        """Registers tiers, so that hits are counted by the tier they came from.

        `TierLoads` calls this.

        Raises:
            UnsupportedGroup: the cache has other groups than one full group.
        """
        pool = self.pool
        if pool.origins is None:
            pool.origins = BlockOrigins(pool.num_blocks)
        for name in names:
            pool.origins.add_tier(name)
            self._hits.num_hit_tokens.setdefault(name, 0)

    @property
    def num_blocks(self) -> int:
        """Total number of blocks, or of slabs if there are several groups."""
        return self._space.num_units

    @property
    def num_available_blocks(self) -> int:
        """Blocks that a reservation can take now: free and evictable.

        With several groups, this and all other counts of room are in slabs: the number of slabs in
        which no block is held. The count is conservative, because slabs in use may have free blocks
        too.
        """
        return self._space.num_available

    def num_blocks_for(self, num_tokens: int) -> int:
        """Returns the blocks, or slabs, that `num_tokens` positions need."""
        return self._space.num_needed(0, num_tokens)

    def num_blocks_beyond(self, num_hit_tokens: int, end: int) -> int:
        """Returns the blocks, or slabs, that positions below `end` need besides those of a hit."""
        return self._space.num_needed(num_hit_tokens, end)

    @property
    def num_promised_blocks(self) -> int:
        """Blocks, or slabs, that copies of states must not use: running sequences may claim them.

        Set by the scheduler at admission; 0 at first.
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
        """Creates a request's keys from its known tokens.

        Args:
            token_ids: [num_tokens] uint32 array, or the same as little-endian bytes.
            adapter_uid: digest of the adapter's bytes; empty for the base model.
            salt: requests with different salts share no blocks.
            boundaries: prompt positions where messages end, as hints for resume points; in the same
                form as `token_ids`.
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
        """Pins the longest cached prefix in full blocks, leaving at least one token to compute.

        With several groups, the hit ends at the longest position at which all of them can resume.

        Args:
            keys: the request's keys.
            max_tokens: upper bound of the hit (prompt logprobs need the rest computed).

        Returns:
            A hit, possibly of zero tokens, which the caller must open or close.
        """
        return self._hit(keys, self._max_hit(keys, max_tokens))

    def peek(self, keys: BlockKeys, *, max_tokens: int | None = None, near: int = 0) -> int:
        """Returns the number of tokens that `match` would hit. Pins nothing.

        Does not affect the eviction order. Costs a few lookups however long the prefix is, so a
        policy may call it for many requests.

        Args:
            keys: the request's keys.
            max_tokens: as for `match`.
            near: the result of an earlier call for these keys; saves lookups if it still holds.
        """
        return self._space.find(keys, self._max_hit(keys, max_tokens), near)

    def leader_block(self, keys: BlockKeys, num_hit_tokens: int) -> tuple[int, bytes] | None:
        """Returns the block of this request that an open sequence is about to compute.

        The request should wait for that block: with it, the request could start at a position
        beyond its hit. The open sequence computes the block in a step that has begun or in a later
        one. Blocks are shared with later steps only, so the block is returned until the next step
        has begun. Costs one comparison for each sequence in prefill.

        Args:
            keys: the request's keys.
            num_hit_tokens: tokens that `match` or `peek` found for them.

        Returns:
            Index and key of the block; requests with the same key wait for the same block. None if
            no open sequence computes a block that the request lacks.
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
        """Returns where a chunk of known tokens from `start` should end; at most `end`.

        The result is below `end` only if a state group needs a copy of its state there. A chunk
        that goes beyond that position makes no copy.
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
        """Starts a sequence after a hit.

        Args:
            keys: the request's keys; the sequence extends them while it runs.
            hit: the result of `match(keys)`, which is consumed. None: start without a hit.
            is_cacheable: whether the sequence's blocks may be shared.
            use: reported to the eviction policy.

        Raises:
            LeaseUsed: the hit was consumed already.
            ValueError: the cache was reset after the match.
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
        """Starts planning a step. Blocks sealed by the previous step can be matched from now on.

        Raises:
            StepOrderError: `step_id` is not greater than the previous one.
        """
        self._ledger.begin(step_id)
        now = self._clock()
        for pool in self._space.pools:
            pool.now = now
        if self._computing:
            self._computing = [each for each in self._computing if each.is_computing]

    def complete_step(self, step_id: int) -> None:
        """Records that the oldest step in flight has run; releases closed sequences parked on it.

        Raises:
            StepOrderError: another step is the oldest.
        """
        self._ledger.complete(step_id)

    def cancel_step(self, step_id: int) -> None:
        """Cancels the newest step, which has no reservations. Its id may be used again.

        Raises:
            StepOrderError: another step is the newest, or the step has reservations.
        """
        self._ledger.cancel(step_id)

    def reset(self) -> None:
        """Resets the prefix cache. Running sequences keep their blocks, unshared, to their end."""
        for pool in self._space.pools:
            pool.reset()

    def take_events(self) -> list[KVEvent]:
        """Returns the events since the last call, in order.

        Raises:
            ValueError: the cache was created without events.
        """
        if self._events is None:
            raise ValueError("this cache records no events: create it with has_events=True")
        return self._events.take()

    def stats(self) -> CacheStats:
        """Returns the current counts."""
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
        """Checks that nothing is held: free + evictable = total, no lease, no pin, no step.

        Raises:
            NotIdle: something is held; the message has the counts.
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
                f"the keys cover {keys.tokens_per_block} tokens per block, this cache uses "
                f"{self._space.tokens_per_key}: create them by its `keys` method"
            )
        num_tokens, leases = self._space.match(keys, limit)
        has_rows = tuple(group.kind == "state" for group in self.groups)
        namespace = self._space.pools[0].namespace
        return PrefixHit(leases, num_tokens=num_tokens, has_rows=has_rows, namespace=namespace)
