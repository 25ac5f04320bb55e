"""Blocks of one sequence in all groups of a cache that has several.

The counterpart of `SequenceBlocks` for several groups: a step takes blocks in all groups or in
none.
"""

from collections.abc import Sequence

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.arena._arena import Arena
from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import CacheUse
from openinfer_kv_cache.groups._recurrent_state import StateRow, StepCopies
from openinfer_kv_cache.pool._block_list import Seals, SequenceBlocks

Table = SequenceBlocks | StateRow


class GroupedBlocks:
    """One block table for each group, over pools that share an arena.

    Attributes:
        is_closed: whether the request is over, even if a step in flight still keeps the blocks.
    """

    __slots__ = ("_arena", "_namespace", "_tables", "is_closed")

    def __init__(self, arena: Arena, tables: Sequence[Table]) -> None:
        self._arena = arena
        self._tables = tuple(tables)
        self._namespace = arena.pools[0].namespace
        self.is_closed = False

    @property
    def block_ids(self) -> tuple[BlockIds, ...]:
        """The block table of each group, without blocks that a window has passed."""
        return tuple(table.ids for table in self._tables)

    @property
    def num_dropped(self) -> tuple[int, ...]:
        """For each group, the number of leading table entries whose blocks were released."""
        return tuple(table.num_dropped[0] for table in self._tables)

    @property
    def num_published(self) -> int:
        """Leading positions that are indexed in every full and window group."""
        return min(
            (t.num_published for t in self._tables if isinstance(t, SequenceBlocks)), default=0
        )

    @property
    def num_landed(self) -> int:
        """Number of leading blocks of the first group whose positions are all computed."""
        first = self._tables[0]
        return first.num_landed if isinstance(first, SequenceBlocks) else 0

    @property
    def is_current(self) -> bool:
        """Whether blocks can still be indexed: the cache was not reset since the start."""
        return self._namespace == self._arena.pools[0].namespace

    @property
    def capacity(self) -> int:
        """Number of positions with blocks in every group, up to the next state copy."""
        return min(table.capacity for table in self._tables)

    def num_short(self, end: int) -> int:
        """Returns an upper bound of the slabs needed for the blocks missing below `end`."""
        return self._arena.slabs_for([table.num_short(end) for table in self._tables])

    def num_to_come(self, end: int) -> int:
        """Returns an upper bound of the further slabs held at any time up to `end`."""
        return self._arena.slabs_for([table.num_to_come(end) for table in self._tables])

    def try_grow(self, end: int) -> tuple[BlockIds, ...] | None:
        """Appends the blocks missing for positions below `end`. None if there is no room."""
        needs = [table.num_short(end) for table in self._tables]
        if any(needs) and not self._arena.try_provide(needs):
            return None
        new_ids = []
        for table, pool, need in zip(self._tables, self._arena.pools, needs, strict=True):
            ids = pool.take_local(need)
            table.grow(ids)
            new_ids.append(ids)
        return tuple(new_ids)

    def plan(
        self, step_id: int, keys: BlockKeys, end: int, reach: int | None, *, is_cacheable: bool
    ) -> tuple[Seals, StepCopies]:
        """Seals the blocks of known tokens below `end`, and returns the state copies.

        Args:
            step_id: the step being planned.
            keys: the request's keys.
            end: upper bound of the planned positions.
            reach: exact number of planned positions; None if only the known tokens are certain.
            is_cacheable: whether blocks may be shared.
        """
        num_known = min(end, keys.num_tokens)
        if reach is None and end == num_known:
            reach = end
        before = tuple(table.num_sealed for table in self._tables)
        copies = StepCopies([], [])
        for table in self._tables:
            if isinstance(table, StateRow):
                copies = table.plan(step_id, keys, end, reach, copies)
            elif is_cacheable:
                table.seal_known(keys, num_known)
        after = tuple(table.num_sealed for table in self._tables)
        return Seals(before, after, num_known), copies

    def publish(self) -> None:
        """Indexes the sealed blocks."""
        for table in self._tables:
            table.publish()

    def settle(self, keys: BlockKeys, num_computed: int, *, is_cacheable: bool) -> None:
        """Records that positions below `num_computed` are computed; indexes and releases blocks."""
        for table in self._tables:
            table.settle(keys, num_computed, is_cacheable=is_cacheable)

    def attribute_to(self, use: CacheUse) -> None:
        """Sets the use that is reported to the eviction policies."""
        for table in self._tables:
            table.attribute_to(use)

    def land_step(self, step_id: int, keys: BlockKeys, seals: Seals) -> None:
        """Records that the step which made these seals has completed."""
        for table, before, after in zip(self._tables, seals.before, seals.after, strict=True):
            table.land_step(step_id, keys, Seals((before,), (after,), seals.num_known))

    def release(self) -> None:
        """Releases all blocks."""
        for table in self._tables:
            table.release()
