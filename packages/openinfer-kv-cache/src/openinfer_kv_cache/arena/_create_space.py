"""Checks on the groups of a cache, and the choice of their block space."""

from collections.abc import Sequence

from openinfer_kv_cache.arena._arena_space import ArenaSpace
from openinfer_kv_cache.arena._slabs import plan_slabs
from openinfer_kv_cache.arena._space import PoolSpace
from openinfer_kv_cache.errors import UnsupportedGroup
from openinfer_kv_cache.groups._cache_group import CacheGroup

BlockSpace = PoolSpace | ArenaSpace
"""Interface between a cache and its blocks: one pool, or an arena shared by several groups."""


def checked_groups(groups: Sequence[CacheGroup], *, has_events: bool) -> tuple[CacheGroup, ...]:
    """Returns the groups as a tuple, if they can share one cache.

    Raises:
        UnsupportedGroup: the block sizes do not fit together.
        ValueError: there is no group, or two have the same name.
    """
    names = [group.name for group in groups]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"a cache needs groups of distinct names, got {names}")
    smallest = min(group.tokens_per_block for group in groups)
    for group in groups:
        if group.tokens_per_block % smallest:
            raise UnsupportedGroup(
                group.name,
                group.kind,
                f"its {group.tokens_per_block} tokens per block are not a multiple of the "
                f"smallest group's {smallest}",
            )
        if has_events and group.kind != "state" and group.tokens_per_block != smallest:
            raise UnsupportedGroup(
                group.name,
                group.kind,
                f"events need blocks of one size, and {group.tokens_per_block} tokens are not "
                f"{smallest}: switch events off",
            )
    return tuple(groups)


def make_space(
    groups: tuple[CacheGroup, ...],
    num_blocks: int | None,
    num_slabs: int | None,
    max_unsettled_tokens: int | None,
) -> BlockSpace:
    """Returns a pool for one full group, and an arena for anything else.

    Raises:
        ValueError: one group needs `num_blocks` alone, several groups need `num_slabs` alone.
    """
    if len(groups) == 1 and num_blocks is not None and num_slabs is None:
        if groups[0].kind == "full":
            return PoolSpace(groups[0], num_blocks)
        num_slabs, per_slab = num_blocks, [1]
    elif len(groups) > 1 and num_slabs is not None and num_blocks is None:
        per_slab = [*plan_slabs(groups).blocks_per_slab]
    else:
        raise ValueError("pass num_blocks for one group, or num_slabs for several, and not both")
    return ArenaSpace(
        groups,
        num_slabs=num_slabs,
        blocks_per_slab=per_slab,
        max_unsettled_tokens=max_unsettled_tokens,
    )
