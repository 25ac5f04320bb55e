"""The block space of a cache with several groups, over one arena."""

from collections.abc import Sequence

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.arena._arena import Arena
from openinfer_kv_cache.groups._cache_group import CacheGroup
from openinfer_kv_cache.groups._grouped_blocks import GroupedBlocks, Table
from openinfer_kv_cache.groups._grouped_match import GroupedMatch
from openinfer_kv_cache.groups._recurrent_state import StateRow
from openinfer_kv_cache.groups._resume_points import ResumePoints
from openinfer_kv_cache.groups._window_blocks import WindowBlocks
from openinfer_kv_cache.pool._block_list import SequenceBlocks
from openinfer_kv_cache.pool._lease import CachedLease

_UNBOUNDED = 2**62


class ArenaSpace:
    """Space for groups of any kinds. Room is counted in slabs.

    Args:
        groups: at least one.
        num_slabs: number of slabs in the arena.
        blocks_per_slab: one number for each group.
        max_unsettled_tokens: upper bound of the positions of one sequence in steps in flight, which
            bounds what a window group needs. None: no bound.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        *,
        num_slabs: int,
        blocks_per_slab: Sequence[int],
        max_unsettled_tokens: int | None,
    ) -> None:
        self.tokens_per_key = min(group.tokens_per_block for group in groups)
        self._groups = tuple(groups)
        is_chained = [group.kind == "full" for group in groups]
        self._arena = Arena(num_slabs, blocks_per_slab, is_chained)
        self.pools = self._arena.pools
        self._match = GroupedMatch(groups, self._arena, base=self.tokens_per_key)
        self._max_unsettled = max_unsettled_tokens

    @property
    def num_units(self) -> int:
        """Total number of slabs."""
        return self._arena.num_slabs

    @property
    def num_available(self) -> int:
        """Free slabs, and slabs in which no block is held."""
        return self._arena.num_available

    @property
    def num_promised(self) -> int:
        """Slabs that optional copies of states must not use."""
        return self._arena.num_promised

    @num_promised.setter
    def num_promised(self, num: int) -> None:
        self._arena.num_promised = num

    @property
    def num_free_beside(self) -> int:
        """Blocks of the first group that would fit into the free slabs."""
        return self._arena.num_free * self.pools[0].blocks_per_slab

    def num_needed(self, start: int, end: int) -> int:
        """Returns an upper bound of the slabs for positions `[start, end)`."""
        needs = []
        for group in self._groups:
            if group.kind == "state":
                needs.append(1)
                continue
            need = -(-end // group.tokens_per_block) - start // group.tokens_per_block
            needs.append(max(0, min(need, self._max_held(group))))
        return self._arena.slabs_for(needs)

    def find(self, keys: BlockKeys, limit: int, near: int = 0) -> int:
        """Returns the longest position, at most `limit`, at which every group can resume."""
        return self._match.find(keys, limit)

    def match(self, keys: BlockKeys, limit: int) -> tuple[int, tuple[CachedLease, ...]]:
        """Returns the longest resume position, and a lease for each group."""
        position = self._match.find(keys, limit)
        return position, self._match.pin(keys, position)

    def open(
        self,
        keys: BlockKeys,
        num_tokens: int,
        cached: tuple[CachedLease, ...],
        *,
        is_cacheable: bool,
    ) -> GroupedBlocks:
        """Returns the sequence's blocks, with one table for each group."""
        tables: list[Table] = []
        for index, (group, pool, lease) in enumerate(
            zip(self._groups, self.pools, cached, strict=True)
        ):
            per_key = group.tokens_per_block // self.tokens_per_key
            if group.kind == "state":
                points = self._points(group, keys) if is_cacheable else None
                tables.append(StateRow(pool, lease, points, group=index, num_tokens=num_tokens))
            elif group.window is not None:
                tables.append(
                    WindowBlocks(
                        pool,
                        lease,
                        self._points(group, keys),
                        window=group.window,
                        max_held=self._max_held(group),
                        tokens_per_block=group.tokens_per_block,
                        keys_per_block=per_key,
                        num_tokens=num_tokens,
                    )
                )
            else:
                tables.append(
                    SequenceBlocks(
                        pool,
                        lease,
                        tokens_per_block=group.tokens_per_block,
                        keys_per_block=per_key,
                    )
                )
        return GroupedBlocks(self._arena, tables)

    def chunk_end(self, keys: BlockKeys, start: int, end: int) -> int:
        """Returns the first position in `(start, end]` where a state must be copied, else `end`."""
        for group in self._groups:
            if group.kind == "state":
                stop = self._points(group, keys).after(start)
                if stop is not None:
                    end = min(end, stop)
        return end

    def shared_after(self, keys: BlockKeys, position: int) -> int | None:
        """Returns the first resume point beyond `position` that all groups have in common."""
        known = keys.num_tokens
        points = [self._points(group, keys) for group in self._groups if group.kind != "full"]
        if not points:
            alignment = self._match.alignment
            end = (position // alignment + 1) * alignment
            return end if end <= known else None
        while True:
            nexts = [each.after(position) for each in points]
            found = max((each for each in nexts if each is not None), default=known + 1)
            if None in nexts or found > known:
                return None
            if all(each == found for each in nexts):
                return found
            position = found - 1

    def _max_held(self, group: CacheGroup) -> int:
        """Returns the upper bound of the blocks of a group that one sequence holds at a time."""
        if group.window is None or self._max_unsettled is None:
            return _UNBOUNDED
        return (group.window + self._max_unsettled) // group.tokens_per_block + 2

    def _points(self, group: CacheGroup, keys: BlockKeys) -> ResumePoints:
        points: ResumePoints | None = keys.resume_points.get(group.name)
        if points is None or points.num_known != keys.num_tokens:
            points = ResumePoints(group.resume, self._match.alignment, keys)
            keys.resume_points[group.name] = points
        return points
