"""How blocks of different sizes share one arena: equal slabs, each cut into blocks of one group.

    arena   [ slab 0 ][ slab 1 ][ slab 2 ][ slab 3 ] ...      all of `slab_bytes`
    group a   0 1 2 3           8 9 10 11                     4 blocks a slab
    group b             1                   3                 1 block a slab

A slab is a whole number of block strides in every group, so block `b` of a group begins at byte
`b * stride` of the arena whichever slab it is in: each group is one strided view over the arena,
and moving a slab from group to group moves no view.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openinfer_kv_cache.errors import UnsupportedGroup
from openinfer_kv_cache.groups._cache_group import CacheGroup

MAX_PADDING = 0.02
"""Share of a block's stride that may be padding."""

_ALIGNMENTS = (256, 64, 16)
"""Bytes that every stride is a multiple of: what wide loads and copy engines like, or, for blocks
so small that this would waste memory, the least that vector loads need."""

_MAX_BLOCKS = 64
"""The slab is no larger than so many of the largest block."""

_LENGTHS_AT_ONCE = 1 << 16
"""Slab lengths compared at a time: blocks of many GB have more of them than memory holds."""

_Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabLayout:
    """Sizes of an arena's slabs, and of each group's blocks in them.

    Attributes:
        slab_bytes: size of every slab.
        block_strides: per group, bytes from one block to the next; a multiple of 256, or of 64 or
            16 for small blocks.
        blocks_per_slab: per group; times the stride it is `slab_bytes`.
    """

    slab_bytes: int
    block_strides: tuple[int, ...]
    blocks_per_slab: tuple[int, ...]

    def offset(self, group: int, block: int) -> int:
        """First byte of a group's block in the arena."""
        return self.block_strides[group] * block

    def num_slabs(self, num_bytes: int) -> int:
        """Whole slabs that so much memory holds."""
        return num_bytes // self.slab_bytes


def plan_slabs(groups: Sequence[CacheGroup], *, max_padding: float = MAX_PADDING) -> SlabLayout:
    """The smallest slab that every group's blocks divide with little padding.

    Args:
        groups: at least one.
        max_padding: share of a block's stride that may be unused.

    Raises:
        UnsupportedGroup: no slab suits all; names the group that does not fit the others.
        ValueError: no group.
    """
    if not groups:
        raise ValueError("an arena needs a group")
    for alignment in _ALIGNMENTS:
        layout, error = _try_plan(groups, alignment, max_padding)
        if layout is not None:
            return layout
    assert error is not None, "no layout and no reason"
    raise error


def _try_plan(
    groups: Sequence[CacheGroup], alignment: int, max_padding: float
) -> tuple[SlabLayout | None, UnsupportedGroup | None]:
    """A layout with strides of this alignment, or why there is none."""
    units = [-(-group.bytes_per_block // alignment) for group in groups]
    for group, unit in zip(groups, units, strict=True):
        if group.bytes_per_block < (1 - max_padding) * unit * alignment:
            return None, _misfit(group, unit * alignment, max_padding)
    largest = max(units)
    best, best_fit = largest, np.zeros(len(groups), np.bool_)
    stop, at_once = largest * _MAX_BLOCKS, min(largest, _LENGTHS_AT_ONCE)
    for start in range(largest, stop, at_once):
        lengths = np.arange(start, min(start + at_once, stop), dtype=np.int64)
        counts = np.stack(
            [_counts(lengths, alignment, group.bytes_per_block, max_padding) for group in groups]
        )
        fits = counts > 0
        index = int(np.argmax(fits.sum(axis=0)))
        if fits[:, index].all():
            length, per_slab = int(lengths[index]), tuple(counts[:, index].tolist())
            return SlabLayout(
                slab_bytes=length * alignment,
                block_strides=tuple(length // num * alignment for num in per_slab),
                blocks_per_slab=per_slab,
            ), None
        if fits[:, index].sum() > best_fit.sum():
            best, best_fit = int(lengths[index]), fits[:, index]
    return None, _misfit(groups[int(np.argmin(best_fit))], best * alignment, max_padding)


def _counts(lengths: _Lengths, alignment: int, block_bytes: int, max_padding: float) -> _Lengths:
    """Per slab length in units of the alignment, the blocks of a slab, or 0 where none fits."""
    most = lengths * alignment // block_bytes
    least = np.ceil(lengths * (alignment * (1 - max_padding)) / block_bytes).astype(np.int64)
    found = np.zeros_like(lengths)
    for fewer in range(int((most - least).max()) + 1):
        num = most - fewer
        fits = (found == 0) & (num >= np.maximum(least, 1))
        fits &= lengths % np.maximum(num, 1) == 0
        found[fits] = num[fits]
    return found


def _misfit(group: CacheGroup, length: int, max_padding: float) -> UnsupportedGroup:
    """Why a group's blocks do not go into `length` bytes, shared with others or alone."""
    num = max(1, length // group.bytes_per_block)
    padding = 1 - num * group.bytes_per_block / length
    return UnsupportedGroup(
        group.name,
        group.kind,
        f"its blocks of {group.bytes_per_block} bytes would be padded by {padding:.1%} beside the "
        f"other groups, more than {max_padding:.0%}: change its tokens_per_block",
    )
