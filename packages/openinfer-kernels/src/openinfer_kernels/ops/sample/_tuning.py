"""Block sizes of the Triton kernels of sample, by GPU family; all families have the same.

`benchmarks/results/sampler-*` has their times on one H200, with the 151,936 ids of Qwen3.
"""

from dataclasses import dataclass
from typing import Any

import triton

from openinfer_kernels.ops.sample import Column, SampleSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSizes:
    """How the kernels cut up a vocabulary.

    Attributes:
        block: Ids of a program of `block_kernel` and `process_kernel`.
        block_warps: Warps of these programs.
        row_warps: Warps of a program of `row_kernel`.
        min_group: Lower bound of the ids of a group; a block keeps the largest score of each group.
        max_groups: Upper bound of the groups of a row; larger vocabularies have larger groups.
        max_small_k: Largest top_k for which the row's candidates are gathered.
        candidates: Upper bound of the scores that a program of `row_kernel` gathers.
        read_ids: Ids that a program of `row_kernel` reads at a time.
        mask_chunk: Words of a mask that a program of `mask_kernel` writes at a time.
        mask_warps: Warps of a program of `mask_kernel`.
        written_ids: Ids that a program of `write_row_kernel` writes.
    """

    block: int
    block_warps: int
    row_warps: int
    min_group: int
    max_groups: int
    max_small_k: int
    candidates: int
    read_ids: int
    mask_chunk: int
    mask_warps: int
    written_ids: int


SIZES: dict[str, SampleSizes] = {
    "default": SampleSizes(
        block=4096,
        block_warps=8,
        row_warps=16,
        min_group=64,
        max_groups=4096,
        max_small_k=1024,
        candidates=4096,
        read_ids=4096,
        mask_chunk=1024,
        mask_warps=8,
        written_ids=512,
    ),
}

MAX_VOCAB_SIZE = SIZES["default"].max_groups * 256
"""Largest vocabulary: with more ids, groups would have more than 256."""


class SampleShape:
    """The compile-time arguments of the kernels for one vocabulary.

    Attributes:
        vocab_size: Ids of the vocabulary.
        num_blocks: Blocks of a row.
        blocks_pad: `num_blocks`, padded to a power of two.
        groups_pad: Groups of a row, padded to a power of two.
        mask_words: Words of 32 bits in a row's mask.
    """

    def __init__(self, spec: SampleSpec, sizes: SampleSizes) -> None:
        """Computes blocks and groups."""
        self._spec, self._sizes = spec, sizes
        self.vocab_size = spec.vocab_size
        self.num_blocks = triton.cdiv(spec.vocab_size, sizes.block)
        self._group_size = sizes.min_group
        while self.num_blocks * sizes.block // self._group_size > sizes.max_groups:
            self._group_size *= 2
        self._num_groups = self.num_blocks * sizes.block // self._group_size
        self.blocks_pad = triton.next_power_of_2(self.num_blocks)
        self.groups_pad = triton.next_power_of_2(self._num_groups)
        self.mask_words = triton.cdiv(spec.vocab_size, 32)
        self._num_columns = int(Column.STOP_IDS) + spec.max_stop_ids

    def scores(self, has_controls: bool) -> dict[str, Any]:
        """Returns the arguments of every kernel that computes scores."""
        return {
            "VOCAB_SIZE": self.vocab_size,
            "NUM_COLUMNS": self._num_columns,
            "MASK_WORDS": self.mask_words,
            "HAS_CONTROLS": has_controls,
        }

    def blocks(self) -> dict[str, Any]:
        """Returns the further arguments of the block kernel and the row kernel."""
        return {
            "MAX_WORD_IDS": self._spec.max_bad_word_ids,
            "NUM_BLOCKS": self.num_blocks,
            "BLOCKS_PAD": self.blocks_pad,
            "GROUP_SIZE": self._group_size,
            "GROUPS_PAD": self.groups_pad,
        }

    def rows(self) -> dict[str, Any]:
        """Returns the further arguments of the row kernel alone."""
        return {
            "NUM_GROUPS": self._num_groups,
            "SMALL_K": min(self._sizes.max_small_k, self.groups_pad),
            "READ_GROUPS": self._sizes.read_ids // self._group_size,
            "CANDIDATES": self._sizes.candidates,
        }

    def masks(self) -> dict[str, Any]:
        """Returns the arguments of the mask kernel, except HAS_MASKS."""
        return {
            "NUM_COLUMNS": self._num_columns,
            "NUM_STOPS": self._spec.max_stop_ids,
            "STOPS_PAD": triton.next_power_of_2(self._spec.max_stop_ids),
            "NUM_WORDS": self._spec.max_bad_words,
            "WORDS_PAD": triton.next_power_of_2(self._spec.max_bad_words),
            "MAX_WORD_IDS": self._spec.max_bad_word_ids,
            "MASK_WORDS": self.mask_words,
            "CHUNK": self._sizes.mask_chunk,
        }
