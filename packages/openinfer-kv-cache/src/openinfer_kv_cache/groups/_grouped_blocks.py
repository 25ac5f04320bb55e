"""One sequence's blocks in every group of a cache that has several.

Like `SequenceBlocks`, which does the same for one group: what a step takes, it takes in all groups
or in none.
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
    """A table a group, over pools that share an arena.

    Attributes:
        is_closed: the request is over, whether or not a step in flight keeps the blocks.
    """

    __slots__ = ("_arena", "_namespace", "_tables", "is_closed")

    def __init__(self, arena: Arena, tables: Sequence[Table]) -> None:
        self._arena = arena
        self._tables = tuple(tables)
        self._namespace = arena.pools[0].namespace
        self.is_closed = False

    @property
    def block_ids(self) -> tuple[BlockIds, ...]:
        """Per group, the block table; without the blocks that a window has left behind."""
        return tuple(table.ids for table in self._tables)

    @property
    def num_dropped(self) -> tuple[int, ...]:
        """Per group, leading entries of the block table whose blocks are gone."""
        return tuple(table.num_dropped[0] for table in self._tables)

    @property
    def num_blocks(self) -> int:
        """At most so many slabs come back when the blocks do."""
        return sum(len(table.ids) for table in self._tables)

    @property
    def num_published(self) -> int:
        """Leading positions that are indexed in every group with blocks of positions."""
        return min(
            (t.num_published for t in self._tables if isinstance(t, SequenceBlocks)), default=0
        )

    @property
    def num_landed(self) -> int:
        """Leading blocks of the first group whose every position is known to be computed."""
        first = self._tables[0]
        return first.num_landed if isinstance(first, SequenceBlocks) else 0

    @property
    def is_current(self) -> bool:
        """Whether blocks can still be indexed: the cache was not reset meanwhile."""
        return self._namespace == self._arena.pools[0].namespace

    @property
    def capacity(self) -> int:
        """Positions that have blocks in every group, and that pass no state worth a copy."""
        return min(table.capacity for table in self._tables)

    def num_short(self, end: int) -> int:
        """Slabs that the missing blocks for positions below `end` fill at most."""
        return self._arena.slabs_for([table.num_short(end) for table in self._tables])

    def num_to_come(self, end: int) -> int:
        """Slabs beyond those held now that it takes until `end`, one step after another."""
        return self._arena.slabs_for([table.num_to_come(end) for table in self._tables])

    def try_grow(self, end: int) -> tuple[BlockIds, ...] | None:
        """Append what is missing for the positions below `end`; None when there is no room."""
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
        """Seal what is known below `end`, and say which states are copied.

        Args:
            step_id: the step being planned.
            keys: the request's keys.
            end: positions below it may be planned.
            reach: exactly these are, or None where only the known ones are certain.
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
        """Index what is sealed."""
        for table in self._tables:
            table.publish()

    def settle(self, keys: BlockKeys, num_computed: int, *, is_cacheable: bool) -> None:
        """Positions below `num_computed` are computed: index and drop accordingly."""
        for table in self._tables:
            table.settle(keys, num_computed, is_cacheable=is_cacheable)

    def attribute_to(self, use: CacheUse) -> None:
        """Who uses the blocks, for the policies of eviction."""
        for table in self._tables:
            table.attribute_to(use)

    def land_step(self, step_id: int, keys: BlockKeys, seals: Seals) -> None:
        """A step has completed that made these seals."""
        for table, before, after in zip(self._tables, seals.before, seals.after, strict=True):
            table.land_step(step_id, keys, Seals((before,), (after,), seals.num_known))

    def release(self) -> None:
        """Let go of everything."""
        for table in self._tables:
            table.release()
