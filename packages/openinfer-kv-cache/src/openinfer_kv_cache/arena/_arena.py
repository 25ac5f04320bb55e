"""Several pools over one arena: slabs are leased to groups and move between them under load.

    free ──gain──> a group's: its blocks are free, held or evictable
     ^                │
     │                v  every block of it free or evictable ("idle")
     └────────────  lose: what was cached in it is evicted ───────────> gained by another group

A group that needs blocks takes, in this order: its own free ones, a free slab, then whatever is
to be given up first: its own evictable blocks, or another group's idle slab. That is what was let
go of longest ago, or what stands lowest with the groups' policies; a slab stands where its best
block does.
"""

from collections.abc import Sequence
from heapq import nsmallest

import numpy as np

from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import EvictionRank
from openinfer_kv_cache.pool._pool import BlockPool

Rank = tuple[tuple[float, ...], int]
"""What is given up first is lowest: a policy's score, empty where there is none, then the tick at
which it was let go of."""


class SlabPool(BlockPool):
    """The pool of one group among several: its blocks are those of the slabs it has.

    Block `b` lies in slab `b // blocks_per_slab`. `num_blocks` and `num_available` are those of the
    slabs that the group has at the moment.
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
        self.has_no_gaps = False  # a slab that moves may take a parent and leave its children
        if not is_chained:
            self._runs = None
        self._arena = arena
        self._index_in_arena = index
        self.blocks_per_slab = blocks_per_slab
        self._is_ours = np.zeros(num_slabs, np.bool_)
        self._num_held = np.zeros(num_slabs, np.int64)
        self._slab_rested = np.zeros(num_slabs, np.int64)
        """Per slab, the tick at which a block of it was last let go of."""
        self._block_rested = np.zeros(num_slabs * blocks_per_slab, np.int64)
        self._slab_ranks: dict[int, EvictionRank] = {}
        """Of slabs that were idle and asked about; with a policy."""

    @property
    def num_idle_slabs(self) -> int:
        """Slabs of ours in which nothing is held."""
        return int(np.count_nonzero(self._is_ours & (self._num_held == 0)))

    def try_take(self, num: int) -> BlockIds | None:
        """Hand out private blocks, with slabs of other groups where needed; None for no room."""
        if num > self._num_free:
            needs = [0] * len(self._arena.pools)
            needs[self._index_in_arena] = num
            if not self._arena.try_provide(needs):
                return None
        return self.take_local(num)

    def try_take_spare(self) -> BlockIds | None:
        """One private block that is optional: slabs that are promised are left alone."""
        if self._arena.num_available <= self._arena.num_promised:
            return None
        return self.try_take(1)

    def count_leading(self, keys: Sequence[bytes]) -> int:
        """Length of the longest indexed prefix of a chain of keys; touches nothing."""
        num = 0 if self._runs is None else len(self._runs.find(keys, len(keys)))
        index = self._index
        while num < len(keys) and keys[num] in index:
            num += 1
        return num

    def take_local(self, num: int) -> BlockIds:
        """Hand out private blocks, at most `num_available`."""
        ids = super().try_take(num)
        assert ids is not None, "more blocks taken than provided"
        self._add_held(ids, 1)
        return ids

    def gain(self, slab: int) -> None:
        """A slab is ours from now on."""
        start = slab * self.blocks_per_slab
        self._put_free(np.arange(start + self.blocks_per_slab - 1, start - 1, -1, dtype=np.int32))
        self._is_ours[slab] = True
        self._slab_rested[slab] = 0
        self.num_blocks += self.blocks_per_slab

    def lose(self, slab: int) -> None:
        """Give an idle slab away, evicting what is cached in it."""
        assert self._is_ours[slab], "another group's slab is given away"
        assert not self._num_held[slab], "a slab in use is given away"
        start = slab * self.blocks_per_slab
        ids = np.arange(start, start + self.blocks_per_slab, dtype=np.int32)
        cached = ids[self._is_indexed[ids]]
        self._evictable.remove(cached)
        self.withdraw(cached)
        self._count_evicted(cached)
        free = self._free[: self._num_free]
        kept = free[free // self.blocks_per_slab != slab]
        self._free[: len(kept)] = kept
        self._num_free = len(kept)
        self._slab_ranks.pop(slab, None)
        self._is_ours[slab] = False
        self.num_blocks -= self.blocks_per_slab

    def idle_slabs(self, most: int) -> list[tuple[Rank, int]]:
        """Of the idle slabs so many at most, those to be given up first at the end."""
        idle = np.flatnonzero(self._is_ours & (self._num_held == 0))
        if self._policed is not None:
            lowest = nsmallest(most, [(self._rank(slab), slab) for slab in idle.tolist()])
            return lowest[::-1]
        places = self._slab_rested[idle] * len(self._is_ours) + idle  # of equals the first
        if most < len(places):
            places = np.partition(places, most)[:most]
        ranked = np.sort(places)[::-1].tolist()
        return [
            (((), tick), slab) for tick, slab in (divmod(p, len(self._is_ours)) for p in ranked)
        ]

    def lowest_rank(self) -> Rank | None:
        """Of the evictable block to be given up first; None where there is none."""
        if not len(self._evictable):
            return None
        score, block = self._evictable.peek()
        return score, int(self._block_rested[block])

    def _rank(self, slab: int) -> Rank:
        """Where an idle slab stands with the policy."""
        assert self._policed is not None
        known = self._slab_ranks.get(slab)
        if known is None or self._policed.now() >= known.until:
            start = slab * self.blocks_per_slab
            known = self._policed.highest(range(start, start + self.blocks_per_slab))
            self._slab_ranks[slab] = known
        return known.score, int(self._slab_rested[slab])

    def _revive(self, idle: BlockIds) -> None:
        super()._revive(idle)
        self._add_held(idle, 1)

    def _rest(self, idle: BlockIds) -> None:
        super()._rest(idle)
        self._add_held(idle, -1)
        tick = self._arena.next_tick()
        self._block_rested[idle] = tick
        self._slab_rested[idle // self.blocks_per_slab] = tick

    def _add_held(self, ids: BlockIds, change: int) -> None:
        slabs = ids // self.blocks_per_slab
        np.add.at(self._num_held, slabs, change)
        if self._slab_ranks:
            for slab in slabs.tolist():
                self._slab_ranks.pop(slab, None)


class Arena:
    """Who has which slab.

    Attributes:
        pools: one a group.
        num_slabs: in total.
        num_moves: slabs that went from one group to another so far.
        num_promised: slabs that `SlabPool.try_take_spare` leaves alone.
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
        """Slabs that no group has."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Slabs that any one group could have: free and idle ones."""
        return len(self._free) + sum(pool.num_idle_slabs for pool in self.pools)

    def next_tick(self) -> int:
        """The time of now, in blocks let go of."""
        self._tick += 1
        return self._tick

    def slabs_for(self, needs: Sequence[int]) -> int:
        """Slabs that so many blocks of each group fill, packed alone."""
        return sum(
            -(-need // pool.blocks_per_slab) for pool, need in zip(self.pools, needs, strict=True)
        )

    def try_provide(self, needs: Sequence[int]) -> bool:
        """See to it that every pool has so many blocks at hand; all or nothing.

        Exact: it fails only if no way of moving idle slabs would do.

        Returns:
            False where there is no room: nothing has changed then.
        """
        pools = self.pools
        missing = [need - pool.num_available for pool, need in zip(pools, needs, strict=True)]
        num_slabs = [
            -(-max(0, num) // pool.blocks_per_slab)
            for pool, num in zip(pools, missing, strict=True)
        ]
        # What a group can spare: idle slabs beyond its own need, none if it is short itself.
        spare = [
            0 if num > 0 else min(pool.num_idle_slabs, -num // pool.blocks_per_slab)
            for pool, num in zip(pools, missing, strict=True)
        ]
        if sum(num_slabs) > len(self._free) + sum(spare):
            return False
        offers = _Offers(pools, spare, self.slabs_for(needs))
        for index, num in enumerate(num_slabs):
            for _ in range(num):
                self._move_to(index, self._lowest(index, offers), offers)
        for index, need in enumerate(needs):
            self._replace_lower(index, need, offers)
        return True

    def _replace_lower(self, index: int, need: int, offers: "_Offers") -> None:
        """Where own blocks would be evicted for a need, takes free and lower slabs first."""
        pool = self.pools[index]
        while need > pool.num_free:
            donor = self._lowest(index, offers)
            own = pool.lowest_rank()
            if not self._free and (donor is None or (own is not None and donor[0] >= own)):
                return
            self._move_to(index, donor, offers)

    def _lowest(self, index: int, offers: "_Offers") -> "_Offer | None":
        """The first slab to be given up that another group can spare; None while some are free."""
        return None if self._free else offers.lowest(index)

    def _move_to(self, index: int, offer: "_Offer | None", offers: "_Offers") -> None:
        if offer is None:
            slab = self._free.pop()
        else:
            _, slab, donor = offer
            offers.take(donor)
            self.pools[donor].lose(slab)
            self.num_moves += 1
        self.pools[index].gain(slab)


_Offer = tuple[Rank, int, int]
"""Rank, slab and group."""


class _Offers:
    """What groups can spare while room is provided; ranked once, for nothing is let go of then.

    Args:
        pools: one a group.
        spare: idle slabs that each can do without.
        most: slabs that will be moved at most.
    """

    def __init__(self, pools: Sequence[SlabPool], spare: list[int], most: int) -> None:
        self._pools = pools
        self._spare = spare
        self._most = most
        self._ranked: list[list[tuple[Rank, int]] | None] = [None] * len(pools)

    def lowest(self, index: int) -> _Offer | None:
        """The first to be given up that another group than this one can spare."""
        donors = [donor for donor, num in enumerate(self._spare) if num and donor != index]
        return min([(*self._slabs_of(donor)[-1], donor) for donor in donors], default=None)

    def take(self, donor: int) -> None:
        """The lowest of this group is given away."""
        self._slabs_of(donor).pop()
        self._spare[donor] -= 1

    def _slabs_of(self, donor: int) -> list[tuple[Rank, int]]:
        ranked = self._ranked[donor]
        if ranked is None:
            most = min(self._spare[donor], self._most)
            ranked = self._ranked[donor] = self._pools[donor].idle_slabs(most)
        return ranked
