"""The pools of several groups in one arena. Slabs move between the groups under load.

    free ──gain──> owned by a group: its blocks are free, held or evictable
     ^                │
     │                v  all of its blocks are free or evictable: the slab is idle
     └────────────  lose: its cached blocks are evicted ───────────> gained by another group

A group that needs blocks takes its own free blocks first, then a free slab. Then it evicts the
lowest rank among its own evictable blocks and the idle slabs of other groups. The lowest rank is
the one released longest ago, or the lowest score of the groups' policies. A slab has the rank of
its highest block.
"""

from collections.abc import Sequence
from heapq import nsmallest

import numpy as np

from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import EvictionRank
from openinfer_kv_cache.pool._pool import BlockPool

Rank = tuple[tuple[float, ...], int]
"""Eviction order, lowest first: the policy's score (empty without a policy), then the tick of the
release."""


class SlabPool(BlockPool):
    """Pool of one group among several. It has the blocks of the slabs that the group owns.

    Block `b` lies in slab `b // blocks_per_slab`. `num_blocks` and `num_available` count blocks of
    the slabs that the group owns at present.
    """

    def __init__(
        self,
        arena: "Arena",
        index: int,
        num_slabs: int,
        blocks_per_slab: int,
        *,
        is_chained: bool,
    ) -> None:
        super().__init__(num_slabs * blocks_per_slab)
        self.num_blocks = 0
        self._num_free = 0
        if not is_chained:
            self._runs = None
        self._arena = arena
        self._index_in_arena = index
        self.blocks_per_slab = blocks_per_slab
        self._is_owned = np.zeros(num_slabs, np.bool_)
        self._num_held = np.zeros(num_slabs, np.int64)
        self._slab_released_at = np.zeros(num_slabs, np.int64)
        """For each slab, the tick at which one of its blocks was last released."""
        self._block_released_at = np.zeros(num_slabs * blocks_per_slab, np.int64)
        self._slab_ranks: dict[int, EvictionRank] = {}
        """Cached ranks of idle slabs; empty without a policy."""

    @property
    def num_idle_slabs(self) -> int:
        """Owned slabs in which no block is held."""
        return int(np.count_nonzero(self._is_owned & (self._num_held == 0)))

    def try_take(self, num: int) -> BlockIds | None:
        """Takes private blocks, and slabs of other groups if needed. None if there is no room."""
        if num > self._num_free:
            needs = [0] * len(self._arena.pools)
            needs[self._index_in_arena] = num
            if not self._arena.try_provide(needs):
                return None
        return self.take_local(num)

    def try_take_spare(self) -> BlockIds | None:
        """Takes one private block for an optional copy, unless that would use promised slabs."""
        if self._arena.num_available <= self._arena.num_promised:
            return None
        return self.try_take(1)

    def count_leading(self, keys: Sequence[bytes]) -> int:
        """Returns the length of the longest indexed prefix of a chain of keys. Changes nothing."""
        num = 0 if self._runs is None else len(self._runs.find(keys, len(keys)))
        index = self._index
        while num < len(keys) and keys[num] in index:
            num += 1
        return num

    def take_local(self, num: int) -> BlockIds:
        """Takes private blocks from owned slabs; `num` is at most `num_available`."""
        ids = super().try_take(num)
        assert ids is not None, "more blocks taken than provided"
        self._add_held(ids, 1)
        return ids

    def gain(self, slab: int) -> None:
        """Adds a slab to the pool."""
        start = slab * self.blocks_per_slab
        self._put_free(np.arange(start + self.blocks_per_slab - 1, start - 1, -1, dtype=np.int32))
        self._is_owned[slab] = True
        self._slab_released_at[slab] = 0
        self.num_blocks += self.blocks_per_slab

    def lose(self, slab: int) -> None:
        """Removes an idle slab from the pool and evicts its cached blocks."""
        assert self._is_owned[slab], "the slab belongs to another group"
        assert not self._num_held[slab], "the slab is in use"
        start = slab * self.blocks_per_slab
        ids = np.arange(start, start + self.blocks_per_slab, dtype=np.int32)
        cached = ids[self._is_indexed[ids]]
        self._evictable.remove(cached)
        self.unindex(cached)
        self._count_evicted(cached)
        free = self._free[: self._num_free]
        kept = free[free // self.blocks_per_slab != slab]
        self._free[: len(kept)] = kept
        self._num_free = len(kept)
        self._slab_ranks.pop(slab, None)
        self._is_owned[slab] = False
        self.num_blocks -= self.blocks_per_slab

    def idle_slabs(self, most: int) -> list[tuple[Rank, int]]:
        """Returns at most `most` idle slabs with the lowest ranks, the lowest one last."""
        idle = np.flatnonzero(self._is_owned & (self._num_held == 0))
        if self._policed is not None:
            lowest = nsmallest(most, [(self._rank(slab), slab) for slab in idle.tolist()])
            return lowest[::-1]
        places = self._slab_released_at[idle] * len(self._is_owned) + idle  # slab index breaks ties
        if most < len(places):
            places = np.partition(places, most)[:most]
        ranked = np.sort(places)[::-1].tolist()
        return [
            (((), tick), slab) for tick, slab in (divmod(p, len(self._is_owned)) for p in ranked)
        ]

    def lowest_rank(self) -> Rank | None:
        """Returns the rank of the block that would be evicted next; None if there is none."""
        if not len(self._evictable):
            return None
        score, block = self._evictable.peek()
        return score, int(self._block_released_at[block])

    def _rank(self, slab: int) -> Rank:
        """Returns the rank of an idle slab according to the policy."""
        assert self._policed is not None
        known = self._slab_ranks.get(slab)
        if known is None or self._policed.now() >= known.until:
            start = slab * self.blocks_per_slab
            known = self._policed.highest(range(start, start + self.blocks_per_slab))
            self._slab_ranks[slab] = known
        return known.score, int(self._slab_released_at[slab])

    def _take_from_queue(self, idle: BlockIds) -> None:
        super()._take_from_queue(idle)
        self._add_held(idle, 1)

    def _make_idle(self, idle: BlockIds) -> None:
        super()._make_idle(idle)
        self._add_held(idle, -1)
        tick = self._arena.next_tick()
        self._block_released_at[idle] = tick
        self._slab_released_at[idle // self.blocks_per_slab] = tick

    def _add_held(self, ids: BlockIds, change: int) -> None:
        slabs = ids // self.blocks_per_slab
        np.add.at(self._num_held, slabs, change)
        if self._slab_ranks:
            for slab in slabs.tolist():
                self._slab_ranks.pop(slab, None)


class Arena:
    """Owner of the slabs: assigns them to the pools of the groups.

    Attributes:
        pools: one for each group.
        num_slabs: total number of slabs.
        num_moves: number of slabs that moved from one group to another so far.
        num_promised: number of slabs that `SlabPool.try_take_spare` must leave.
    """

    def __init__(
        self, num_slabs: int, blocks_per_slab: Sequence[int], is_chained: Sequence[bool]
    ) -> None:
        if num_slabs < 1:
            raise ValueError(f"num_slabs must be at least 1, got {num_slabs}")
        self.num_slabs = num_slabs
        self.num_moves = self.num_promised = 0
        self._free = list(range(num_slabs - 1, -1, -1))
        self._tick = 0
        self.pools = tuple(
            SlabPool(self, index, num_slabs, num, is_chained=chained)
            for index, (num, chained) in enumerate(zip(blocks_per_slab, is_chained, strict=True))
        )

    @property
    def num_free(self) -> int:
        """Slabs that no group owns."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Slabs that a group could get: free and idle ones."""
        return len(self._free) + sum(pool.num_idle_slabs for pool in self.pools)

    def next_tick(self) -> int:
        """Returns the next tick, which orders releases over all groups."""
        self._tick += 1
        return self._tick

    def slabs_for(self, needs: Sequence[int]) -> int:
        """Returns the slabs that `needs[group]` blocks of each group fill, each group by itself."""
        return sum(
            -(-need // pool.blocks_per_slab) for pool, need in zip(self.pools, needs, strict=True)
        )

    def try_provide(self, needs: Sequence[int]) -> bool:
        """Moves slabs until every pool has `needs[group]` blocks available; all or nothing.

        Exact: it fails only if no way of moving idle slabs would suffice.

        Returns:
            False if there is no room; nothing has changed then.
        """
        pools = self.pools
        missing = [need - pool.num_available for pool, need in zip(pools, needs, strict=True)]
        num_slabs = [
            -(-max(0, num) // pool.blocks_per_slab)
            for pool, num in zip(pools, missing, strict=True)
        ]
        # A group can spare the idle slabs beyond its own need, and none if it is short itself.
        spare = [
            0 if num > 0 else min(pool.num_idle_slabs, -num // pool.blocks_per_slab)
            for pool, num in zip(pools, missing, strict=True)
        ]
        if sum(num_slabs) > len(self._free) + sum(spare):
            return False
        spares = _SpareSlabs(pools, spare, self.slabs_for(needs))
        for index, num in enumerate(num_slabs):
            for _ in range(num):
                self._move_to(index, self._lowest(index, spares), spares)
        for index, need in enumerate(needs):
            self._replace_lower(index, need, spares)
        return True

    def _replace_lower(self, index: int, need: int, spares: "_SpareSlabs") -> None:
        """Takes free slabs, and slabs of lower rank, before the group's own blocks are evicted."""
        pool = self.pools[index]
        while need > pool.num_free:
            donor = self._lowest(index, spares)
            own = pool.lowest_rank()
            if not self._free and (donor is None or (own is not None and donor[0] >= own)):
                return
            self._move_to(index, donor, spares)

    def _lowest(self, index: int, spares: "_SpareSlabs") -> "_SpareSlab | None":
        """Returns the lowest slab that another group can spare; None while there are free slabs."""
        return None if self._free else spares.lowest(index)

    def _move_to(self, index: int, spare_slab: "_SpareSlab | None", spares: "_SpareSlabs") -> None:
        if spare_slab is None:
            slab = self._free.pop()
        else:
            _, slab, donor = spare_slab
            spares.take(donor)
            self.pools[donor].lose(slab)
            self.num_moves += 1
        self.pools[index].gain(slab)


_SpareSlab = tuple[Rank, int, int]
"""Rank, slab and group."""


class _SpareSlabs:
    """Slabs that groups can spare during one `try_provide`.

    Ranked once for each group: nothing is released meanwhile, so ranks stay valid.

    Args:
        pools: one for each group.
        spare: number of idle slabs that each group can spare.
        most: upper bound of the slabs that will move.
    """

    def __init__(self, pools: Sequence[SlabPool], spare: list[int], most: int) -> None:
        self._pools = pools
        self._spare = spare
        self._most = most
        self._ranked: list[list[tuple[Rank, int]] | None] = [None] * len(pools)

    def lowest(self, index: int) -> _SpareSlab | None:
        """Returns the lowest slab that another group can spare; None if there is none."""
        donors = [donor for donor, num in enumerate(self._spare) if num and donor != index]
        return min([(*self._slabs_of(donor)[-1], donor) for donor in donors], default=None)

    def take(self, donor: int) -> None:
        """Removes the lowest spare slab of this group."""
        self._slabs_of(donor).pop()
        self._spare[donor] -= 1

    def _slabs_of(self, donor: int) -> list[tuple[Rank, int]]:
        ranked = self._ranked[donor]
        if ranked is None:
            most = min(self._spare[donor], self._most)
            ranked = self._ranked[donor] = self._pools[donor].idle_slabs(most)
        return ranked
