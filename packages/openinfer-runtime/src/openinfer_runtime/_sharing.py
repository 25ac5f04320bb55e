"""Which rows of a decode step begin with the same cache blocks, found when rows come and go.

Sequences that hit the same cached prefix have the same blocks in their tables, so the blocks' ids
tell. Nobody shares who has not hit a long prefix or is not hit: where too few rows have, nothing is
looked at. Groups hold as long as the rows of a step stay the same ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from openinfer_kernels import (
    MAX_PREFIX_GROUPS,
    PrefixGroup,
    PrefixTable,
    SharedPrefixes,
    upload,
)
from openinfer_scheduler import StepPlan

BlockTables = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingThresholds:
    """From where on attending to shared blocks once is faster, as measured on an H200.

    Attributes:
        min_rows: of a group.
        min_tokens: that a group shares.
        min_saved_tokens: of a step: tokens that need not be read again, over all rows.
    """

    min_rows: int = 4
    min_tokens: int = 512
    min_saved_tokens: int = 28_672


class PrefixGroups:
    """The groups of the steps of one executor. Use from the step thread.

    Args:
        block_tables: [num_slots, max_blocks]: by slot, kept by their owner.
        num_blocks: [num_slots]: how many of them a slot has, likewise.
        block_size: tokens of a block.
        thresholds: who may be in a group.
    """

    def __init__(
        self,
        block_tables: BlockTables,
        num_blocks: npt.NDArray[np.int64],
        block_size: int,
        thresholds: SharingThresholds,
    ) -> None:
        self._tables = block_tables
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._thresholds = thresholds
        self._min_blocks = -(-thresholds.min_tokens // block_size)
        self._has_hit = np.zeros(len(num_blocks), bool)
        self._num_hits = 0
        self._slots: list[int] | None = None
        self._groups: tuple[PrefixGroup, ...] = ()

    def of(self, plan: StepPlan) -> tuple[PrefixGroup, ...]:
        """Groups among a plan's rows, best first. Call it for every plan, before it is applied."""
        if plan.starts or plan.ends:
            self._follow(plan)
        # A step that starts a row has its blocks' ids only afterwards. It rarely is one of decode.
        if self._num_hits < self._thresholds.min_rows - 1 or plan.starts:
            return ()
        slots = [row.slot for row in plan.rows]
        if plan.num_tokens != len(slots):
            return ()
        if slots != self._slots:
            self._slots, self._groups = slots, self._found(np.array(slots, np.int64))
        return self._groups

    def _follow(self, plan: StepPlan) -> None:
        self._slots = None
        self._has_hit[list(plan.ends)] = False
        for start in plan.starts:
            self._has_hit[start.slot] = start.num_cached_tokens >= self._thresholds.min_tokens
        self._num_hits = int(self._has_hit.sum())

    def _found(self, slots: Rows) -> tuple[PrefixGroup, ...]:
        # A row's last block is the one it writes to, which nobody shares.
        shareable = self._num_blocks[slots] - 1
        rows = (shareable >= self._min_blocks).nonzero()[0]
        groups = self._split(slots, shareable, rows, 0)
        groups = sorted(groups, key=_saved_tokens, reverse=True)[:MAX_PREFIX_GROUPS]
        if sum(map(_saved_tokens, groups)) < self._thresholds.min_saved_tokens:
            return ()
        return tuple(groups)

    def _split(self, slots: Rows, shareable: Rows, rows: Rows, begin: int) -> list[PrefixGroup]:
        """Groups of rows whose tables are the same up to `begin`."""
        if len(rows) < self._thresholds.min_rows:
            return []
        blocks = self._tables[slots[rows], begin]
        _, kinds, counts = np.unique(blocks, return_inverse=True, return_counts=True)
        return [
            group
            for kind in (counts >= self._thresholds.min_rows).nonzero()[0]
            for group in self._grouped(slots, shareable, rows[kinds == kind], begin)
        ]

    def _grouped(self, slots: Rows, shareable: Rows, rows: Rows, begin: int) -> list[PrefixGroup]:
        """Groups of rows whose tables are the same up to `begin` and there.

        Some may share more among themselves. They make a group of their own if that saves more
        than their part in the group of all.
        """
        end = self._common(slots[rows], begin, int(shareable[rows].min()))
        deeper = self._split(slots, shareable, rows[shareable[rows] > end], end)
        num_tokens = end * self._block_size
        kept = [group for group in deeper if _saved_tokens(group) > len(group.members) * num_tokens]
        rest = rows[~np.isin(rows, [row for group in kept for row in group.members])]
        if len(rest) >= self._thresholds.min_rows and end >= self._min_blocks:
            return [*kept, PrefixGroup(members=rest, num_tokens=num_tokens)]
        return deeper

    def _common(self, slots: Rows, begin: int, end: int) -> int:
        """Up to where tables are the same, of at most `end` blocks."""
        # Compared piece by piece: tables are long, and may part early.
        for first in range(begin, end, 256):
            tables = self._tables[slots, first : min(first + 256, end)]
            is_same = (tables == tables[0]).all(axis=0)
            if not is_same.all():
                return first + int(is_same.argmin())
        return end


def _saved_tokens(group: PrefixGroup) -> int:
    return (len(group.members) - 1) * group.num_tokens


class PrefixInput:
    """The groups of steps of one shape, on the device and always in the same place.

    Args:
        num_seqs: sequences of a step, padding included.
        num_kv_heads: key heads of the model's attention.
        device: where the steps run.
    """

    def __init__(self, num_seqs: int, num_kv_heads: int, device: torch.device) -> None:
        self._table = PrefixTable(num_seqs, num_kv_heads)
        self._packed = torch.zeros(self._table.size, dtype=torch.int32, device=device)
        self._groups: Sequence[PrefixGroup] = ()
        self.shared: SharedPrefixes = self._table.view(self._packed)

    def fill(self, groups: Sequence[PrefixGroup]) -> None:
        """Sends groups, unless they are the very ones of the step before."""
        if groups is not self._groups:
            self._groups = groups
            self._packed.copy_(upload(self._table.packed(groups), self._packed.device))
