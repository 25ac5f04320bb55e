"""Saves to tiers: landed blocks, pinned until every copy of them is over."""

from collections.abc import Sequence

from openinfer_kv_cache._cache import KVCache
from openinfer_kv_cache._sequence import SequenceCache
from openinfer_kv_cache.pool._lease import CachedLease
from openinfer_kv_cache.tiers._protocol import BlockSpan, CacheTier, TierTransfer


class TierSaves:
    """Every save under way, over a cache with one full group. For the step thread.

    Args:
        cache: made with `keeps_token_ids`.
        tiers: each gets every block.
        max_pinned_blocks: what would pin more than so many is not saved; None: no bound.

    Attributes:
        num_failed: transfers that failed so far.
        num_skipped_blocks: blocks not saved for lack of pins so far.

    Raises:
        UnsupportedGroup: the cache has other groups.
    """

    def __init__(
        self, cache: KVCache, tiers: Sequence[CacheTier], *, max_pinned_blocks: int | None = None
    ) -> None:
        self._cache = cache
        self._pool = cache.pool
        self._tiers = tuple(tiers)
        self._max_pinned = max_pinned_blocks
        self._pending: list[tuple[CachedLease, list[TierTransfer]]] = []
        self.num_failed = self.num_skipped_blocks = 0

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks held for copies; one held for two copies counts twice."""
        return sum(len(lease) for lease, _ in self._pending)

    def seal(self, sequence: SequenceCache, start: int) -> int:
        """Begin to save the landed blocks of a sequence from the `start`-th on.

        Returns:
            Where the next call goes on: the blocks before it are saved, on their way or skipped.
        """
        stop = sequence.num_landed_blocks
        if stop <= start:
            return start
        if self._max_pinned is not None:
            room = max(0, self._max_pinned - self.num_pinned_blocks)
            self.num_skipped_blocks += max(0, stop - start - room)
            if room == 0:
                return stop
        else:
            room = stop - start
        end = min(stop, start + room)
        keys = sequence.keys
        lease = CachedLease.match(self._pool, keys.slice(start, end))
        end = start + len(lease)
        if end == start:
            lease.close()
            return stop
        span = BlockSpan(
            keys=tuple(keys.slice(start, end)), token_ids=keys.token_column(start, end)
        )
        self._cache.num_tier_blocks += len(lease)
        self._pending.append((lease, [tier.seal(span, lease.ids) for tier in self._tiers]))
        return stop

    def poll(self) -> None:
        """Let go of blocks whose copies are over."""
        pending = []
        for lease, transfers in self._pending:
            waiting = []
            for transfer in transfers:
                if not transfer.poll():
                    waiting.append(transfer)
                else:
                    self.num_failed += transfer.error is not None
            if waiting:
                pending.append((lease, waiting))
            else:
                self._cache.num_tier_blocks -= len(lease)
                lease.close()
        self._pending = pending
