"""Saves to tiers: landed blocks, pinned until all copies of them have ended."""

from collections.abc import Sequence

from openinfer_kv_cache._cache import KVCache
from openinfer_kv_cache._sequence import SequenceCache
from openinfer_kv_cache.pool._lease import CachedLease
from openinfer_kv_cache.tiers._protocol import BlockSpan, CacheTier, TierTransfer


class TierSaves:
    """All saves in progress, for a cache with one full group. Step thread only.

    Args:
        cache: created with `keeps_token_ids`.
        tiers: each of them gets every block.
        max_pinned_blocks: upper bound of pinned blocks; blocks beyond it are not saved. None: no
            bound.

    Attributes:
        num_failed: number of failed transfers so far.
        num_skipped_blocks: number of blocks not saved because of `max_pinned_blocks` so far.

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
        """Number of blocks pinned for copies; a block pinned twice counts twice."""
        return sum(len(lease) for lease, _ in self._pending)

    def seal(self, sequence: SequenceCache, start: int) -> int:
        """Begins to save the landed blocks of a sequence, from block `start` on.

        Returns:
            The `start` of the next call: earlier blocks are saved, in transfer or skipped.
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
        """Releases the blocks whose copies have ended."""
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
