"""Loads from tiers, for requests that are not in the scheduler yet.

    resolve ──> loading ──transfer ends──> done        the blocks are cached: match again
                   │  └────failed────────> failed      recompute
                   └──deadline──> late                 recompute; the blocks stay held until
                                                       the transfer ends

The request continues in every case: a tier can only make it faster.
"""

from collections.abc import Callable, Sequence
from typing import Literal, final

from openinfer_kv_cache._cache import KVCache
from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache._sequence import PrefixHit
from openinfer_kv_cache.pool._lease import MutableLease
from openinfer_kv_cache.pool._origins import BlockOrigins
from openinfer_kv_cache.tiers._protocol import BlockSpan, CacheTier, TierHit, TierTransfer

LoadState = Literal["loading", "done", "late", "failed"]


@final
class TierLoad:
    """The load of one request.

    Attributes:
        state: see the module docstring. The request waits only while the state is "loading".
        tier: name of the tier.
        num_tokens: number of tokens being loaded.
        num_blocks: number of blocks held, including those of the cached prefix before the load.
        error: why the load failed, or None.
    """

    __slots__ = (
        "_deadline",
        "_hit",
        "_keys",
        "_lease",
        "_namespace",
        "_origins",
        "_transfer",
        "error",
        "num_blocks",
        "num_tokens",
        "state",
        "tier",
    )

    def __init__(
        self,
        keys: Sequence[bytes],
        hit: PrefixHit,
        lease: MutableLease,
        transfer: TierTransfer,
        *,
        namespace: int,
        origins: BlockOrigins,
        deadline: float | None,
        tier: str,
        num_tokens: int,
    ) -> None:
        self._keys = keys
        self._hit = hit
        self._lease = lease
        self._transfer = transfer
        self._namespace = namespace
        self._origins = origins
        self._deadline = deadline
        self.state: LoadState = "loading"
        self.tier = tier
        self.num_tokens = num_tokens
        self.num_blocks = len(lease) + len(hit.block_ids[0])
        self.error: str | None = None

    def poll(self, now: float) -> bool:
        """Updates the state; returns whether the transfer has ended and all blocks are released."""
        if not self._transfer.poll():
            if self._deadline is not None and now >= self._deadline:
                self.state = "late"
            return False
        self.error = self._transfer.error
        if self.error is None:
            # Release the loaded blocks before the prefix, so that the prefix is evicted after them.
            sealed, rest = self._lease.seal(self._keys, self._namespace)
            rest.close()
            before = self._hit.block_ids[0]
            loaded = sealed.publish(above=int(before[-1]) if len(before) else None)
            self._origins.mark(loaded.ids, self.tier)
            loaded.close()
        else:
            self._lease.close()
        self._hit.close()
        if self.state == "loading":
            self.state = "done" if self.error is None else "failed"
        return True


class TierLoads:
    """All loads in progress, for a cache with one full group. Step thread only.

    Args:
        cache: created with `keeps_token_ids`.
        tiers: asked in this order; the first tier that has the next block is used.
        num_entitled_blocks: returns how many blocks admitted requests may still claim. Loads leave
            these free, so that they never starve admitted requests.

    Attributes:
        num_loaded_tokens: tokens loaded so far, by tier name.
        num_failed: number of failed loads so far.
        num_late: number of loads whose deadline passed before the transfer ended.
        num_mismatched: number of hits whose token ids differ from the request's: colliding keys.
        num_refused: number of hits that were not loaded for lack of room.

    Raises:
        UnsupportedGroup: the cache has other groups.
    """

    def __init__(
        self,
        cache: KVCache,
        tiers: Sequence[CacheTier],
        *,
        num_entitled_blocks: Callable[[], int] = lambda: 0,
    ) -> None:
        self._cache = cache
        self._pool = cache.pool
        self._tiers = tuple(tiers)
        cache.add_tiers([tier.name for tier in tiers])
        self._num_entitled = num_entitled_blocks
        self._pending: list[TierLoad] = []
        self.num_loaded_tokens = {tier.name: 0 for tier in tiers}
        self.num_failed = self.num_late = self.num_mismatched = self.num_refused = 0

    @property
    def num_pending(self) -> int:
        """Number of loads whose transfers have not ended."""
        return len(self._pending)

    def resolve(self, keys: BlockKeys, *, deadline: float | None = None) -> TierLoad | None:
        """Begins to load the blocks of a request's prefix that the device lacks.

        Args:
            keys: the request's keys.
            deadline: monotonic time in seconds after which the request stops waiting.

        Returns:
            A load to wait for, or None if there is nothing to load.
        """
        hit = self._cache.match(keys)
        size = keys.tokens_per_block
        start, stop = hit.num_tokens // size, (keys.num_tokens - 1) // size
        load = None
        if stop > start:
            span = BlockSpan(
                keys=tuple(keys.slice(start, stop)), token_ids=keys.token_column(start, stop)
            )
            load = self._try_load(span, hit, size, deadline)
        if load is None:
            hit.close()
        else:
            self._pending.append(load)
            self._cache.num_tier_blocks += load.num_blocks
        return load

    def poll(self, now: float) -> list[TierLoad]:
        """Returns the loads whose requests need not wait any more, since the last call."""
        released, pending = [], []
        for load in self._pending:
            was_waiting = load.state == "loading"
            is_over = load.poll(now)
            if is_over and load.error is None:
                self.num_loaded_tokens[load.tier] += load.num_tokens
            self.num_failed += is_over and load.error is not None
            if was_waiting and load.state != "loading":
                self.num_late += load.state == "late"
                released.append(load)
            if is_over:
                self._cache.num_tier_blocks -= load.num_blocks
            else:
                pending.append(load)
        self._pending = pending
        return released

    def _try_load(
        self, span: BlockSpan, hit: PrefixHit, size: int, deadline: float | None
    ) -> TierLoad | None:
        for tier in self._tiers:
            found = tier.resolve(span)
            if found is None:
                continue
            num = self._num_loadable(found, span)
            lease = MutableLease.try_take(self._pool, num) if num else None
            if lease is None:
                found.close()
                continue
            origins = self._pool.origins
            assert origins is not None, "add_tiers was called"
            return TierLoad(
                span.keys[:num],
                hit,
                lease,
                found.load(lease.ids),
                namespace=self._pool.namespace,
                origins=origins,
                deadline=deadline,
                tier=tier.name,
                num_tokens=num * size,
            )
        return None

    def _num_loadable(self, found: TierHit, span: BlockSpan) -> int:
        size, stored = span.bytes_per_block, found.token_ids
        num = 0
        while num < found.num_blocks and (
            stored[num * size : (num + 1) * size] == span.token_ids[num * size : (num + 1) * size]
        ):
            num += 1
        self.num_mismatched += num < found.num_blocks
        room = max(0, self._pool.num_available - self._num_entitled())
        self.num_refused += room < num
        return min(num, room)
