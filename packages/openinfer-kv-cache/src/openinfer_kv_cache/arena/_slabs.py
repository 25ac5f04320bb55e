"""Layout of an arena: equal slabs, each divided into blocks of one group.

    arena   [ slab 0 ][ slab 1 ][ slab 2 ][ slab 3 ] ...      all of `slab_bytes`
    group a   0 1 2 3           8 9 10 11                     4 blocks a slab
    group b             1                   3                 1 block a slab

A slab is a whole number of block strides in every group, so block `b` of a group begins at byte
`b * stride` of the arena, whichever slab it is in. Each group is one strided view over the arena,
and no view changes when a slab moves from one group to another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openinfer_kv_cache.errors import UnsupportedGroup
from openinfer_kv_cache.groups._cache_group import CacheGroup

MAX_PADDING = 0.02
"""Upper bound of the padding, as a share of a block's stride."""

_ALIGNMENTS = (256, 64, 16)
"""Alignments of strides in bytes, best first. 256 suits wide loads and copy engines; 16 is the
minimum of vector loads, for blocks so small that more would waste memory."""

_MAX_BLOCKS = 64
"""Upper bound of the slab size, in blocks of the largest group."""

_LENGTHS_AT_ONCE = 1 << 16
"""Number of slab lengths compared at once; it bounds the memory of planning for very large
blocks."""

_Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabLayout:
    """Sizes of an arena's slabs, and of the blocks of each group.

    Attributes:
        slab_bytes: size of every slab.
        block_strides: for each group, bytes from one block to the next; a multiple of 256, or of 64
            or 16 for small blocks.
        blocks_per_slab: for each group; `slab_bytes` divided by the stride.
    """

    slab_bytes: int
    block_strides: tuple[int, ...]
    blocks_per_slab: tuple[int, ...]

    def offset(self, group: int, block: int) -> int:
        """Returns the offset of a group's block in the arena, in bytes."""
        return self.block_strides[group] * block

    def num_slabs(self, num_bytes: int) -> int:
        """Returns the number of whole slabs that fit into `num_bytes`."""
        return num_bytes // self.slab_bytes


def plan_slabs(groups: Sequence[CacheGroup], *, max_padding: float = MAX_PADDING) -> SlabLayout:
    """Returns the layout with the smallest slab that suits every group.

    Args:
        groups: at least one.
        max_padding: upper bound of the unused share of a block's stride.

    Raises:
        UnsupportedGroup: no slab suits all groups; names the group that does not fit the others.
        ValueError: there is no group.
    """
    if not groups:
        raise ValueError("an arena needs at least one group")
    for alignment in _ALIGNMENTS:
        layout, error = _try_plan(groups, alignment, max_padding)
        if layout is not None:
            return layout
    assert error is not None, "no layout and no reason"
    raise error


def _try_plan(
    groups: Sequence[CacheGroup], alignment: int, max_padding: float
) -> tuple[SlabLayout | None, UnsupportedGroup | None]:
    """Returns a layout with strides of this alignment, or the reason why there is none."""
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
    """Returns the blocks per slab for each slab length (in alignment units); 0 if none fits."""
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
    """Returns the error for a group whose blocks do not fit into slabs of `length` bytes."""
    num = max(1, length // group.bytes_per_block)
    padding = 1 - num * group.bytes_per_block / length
    return UnsupportedGroup(
        group.name,
        group.kind,
        f"its blocks of {group.bytes_per_block} bytes would need {padding:.1%} padding beside the "
        f"other groups, more than {max_padding:.0%}: change its tokens_per_block",
    )
