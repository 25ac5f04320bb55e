"""Prefix matching over several groups: the longest position at which all of them can resume."""

from collections.abc import Sequence

import numpy as np

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.arena._arena import Arena, SlabPool
from openinfer_kv_cache.groups._cache_group import CacheGroup
from openinfer_kv_cache.pool._lease import CachedLease
from openinfer_kv_cache.pool._pool import BlockPool


class GroupedMatch:
    """Finds and pins the blocks that several groups need to resume at one common position.

    A full group needs every block before the position, a window group the blocks that the next
    token sees, and a state group the checkpoint made exactly there. Each group is asked for the
    longest position, up to a limit, at which it could resume. Lowering the limit until all groups
    agree finds the longest common position.

    Attributes:
        alignment: every hit is a multiple of it, so that no group resumes within a block.
    """

    def __init__(self, groups: Sequence[CacheGroup], arena: Arena, *, base: int) -> None:
        self._pairs = tuple(zip(groups, arena.pools, strict=True))
        self._base = base
        self.alignment = int(np.lcm.reduce([group.tokens_per_block for group in groups]))

    def find(self, keys: BlockKeys, limit: int) -> int:
        """Returns the longest common position, at most `limit`. Pins nothing."""
        position = limit // self.alignment * self.alignment
        if position <= 0:
            return 0
        chain = keys.slice(0, position // self._base)
        num_full: dict[int, int] = {}
        while position:
            lowest = position
            for index, (group, pool) in enumerate(self._pairs):
                if group.kind == "full":
                    if index not in num_full:
                        num_full[index] = self._leading(group, pool, chain)
                    lowest = min(lowest, num_full[index])
                elif group.kind == "window":
                    lowest = self._seen_whole(group, pool, chain, lowest)
                else:
                    lowest = self._last_checkpoint(pool, chain, lowest)
                lowest = lowest // self.alignment * self.alignment
            if lowest == position:
                break
            position = lowest
        return position

    def pin(self, keys: BlockKeys, position: int) -> tuple[CachedLease, ...]:
        """Returns, for each group, a lease of the blocks needed to resume at `position`."""
        chain = keys.slice(0, position // self._base)
        leases = []
        for group, pool in self._pairs:
            if not position:
                wanted: Sequence[bytes] = ()
            elif group.kind == "state":
                wanted = chain[-1:]
            else:
                blocks = self._block_keys(group, chain)
                wanted = blocks[_first_seen(group, position) :]
            leases.append(CachedLease.hold(pool, wanted))
        return tuple(leases)

    def _block_keys(self, group: CacheGroup, chain: Sequence[bytes]) -> Sequence[bytes]:
        per = group.tokens_per_block // self._base
        return chain[per - 1 :: per]

    def _leading(self, group: CacheGroup, pool: SlabPool, chain: Sequence[bytes]) -> int:
        return pool.count_leading(self._block_keys(group, chain)) * group.tokens_per_block

    def _seen_whole(
        self, group: CacheGroup, pool: BlockPool, chain: Sequence[bytes], position: int
    ) -> int:
        """Returns `position` if its window is cached, else the end of the block before the gap."""
        size = group.tokens_per_block
        per = size // self._base
        for block in range(position // size - 1, _first_seen(group, position) - 1, -1):
            if not pool.has(chain[(block + 1) * per - 1]):
                return block * size
        return position

    def _last_checkpoint(self, pool: BlockPool, chain: Sequence[bytes], position: int) -> int:
        step = self.alignment // self._base
        for end in range(position // self._base, 0, -step):
            if pool.has(chain[end - 1]):
                return end * self._base
        return 0


def _first_seen(group: CacheGroup, position: int) -> int:
    """Returns the index of the first block that the token at `position` sees."""
    if group.window is None:
        return 0
    return max(0, position - group.window + 1) // group.tokens_per_block
