"""Groups of rows of a decode step that begin with the same cache blocks.

Sequences that hit the same cached prefix have the same block ids in their tables, so comparing ids
finds the groups. Only rows that hit a long prefix can share one: if fewer than `min_rows` - 1 rows
did, the tables are not read. Groups are reused while the step has the same rows.

Tables are not compared block by block. The prefix cache finds a block by a key that covers all
tokens before its end, so two rows with the same block at one place have the same tokens up to it.
Comparing tables at `NUM_DEPTHS` places therefore suffices, however groups are nested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import NamedTuple

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
from openinfer_scheduler import PlannedRow, StepPlan

BlockTables = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int64]

NUM_DEPTHS = 32
"""Number of depths at which tables are compared.

In tables of 131,072 tokens each depth is at most a fifth larger than the one before. Groups that
differ between two depths alone are not told apart, so a step may save up to a fifth less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingThresholds:
    """Sizes from which reading shared blocks once is faster, measured on an H200.

    Attributes:
        min_rows: Lower bound on the rows of a group.
        min_tokens: Lower bound on the tokens that a group shares.
        min_saved_tokens: Lower bound on the tokens that a step need not read again, over all rows.
    """

    min_rows: int = 4
    min_tokens: int = 512
    min_saved_tokens: int = 28_672


class PrefixGroups:
    """Finds the groups of each step of one executor. Use from the step thread.

    Args:
        block_tables: [num_slots, max_blocks]: block ids of each slot. The owner changes them.
        num_blocks: [num_slots]: number of blocks of each slot. The owner changes them.
        block_size: Tokens per block.
        thresholds: Sizes from which sharing is faster.
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
        self._rows: tuple[PlannedRow, ...] = ()
        self._slots: list[int] | None = None
        self._groups: tuple[PrefixGroup, ...] = ()

    def of(self, plan: StepPlan) -> tuple[PrefixGroup, ...]:
        """Returns the groups among a plan's rows, best first.

        Call it for every plan, before the plan changes the block tables.
        """
        if plan.starts or plan.ends:
            self._note_hits(plan)
        # Blocks of a row that starts are not in the tables yet. Such steps are rarely decode steps.
        if self._num_hits < self._thresholds.min_rows - 1 or plan.starts:
            return ()
        rows = plan.rows
        # Decode rows come first.
        if not rows or (rows[-1].token_ids is not None and plan.num_tokens != len(rows)):
            return ()
        if len(rows) == len(self._rows) and all(map(is_, rows, self._rows)):
            return self._groups
        self._rows = rows
        slots = [row.slot for row in rows]
        if slots != self._slots:
            self._slots, self._groups = slots, self._found(np.array(slots, np.int64))
        return self._groups

    def _note_hits(self, plan: StepPlan) -> None:
        self._rows, self._slots = (), None
        self._has_hit[list(plan.ends)] = False
        for start in plan.starts:
            self._has_hit[start.slot] = start.num_cached_tokens >= self._thresholds.min_tokens
        self._num_hits = int(self._has_hit.sum())

    def _found(self, slots: Rows) -> tuple[PrefixGroup, ...]:
        # A row writes to its last block, which no other row shares.
        shareable = self._num_blocks[slots] - 1
        rows = (shareable >= self._min_blocks).nonzero()[0]
        min_rows = self._thresholds.min_rows
        if len(rows) < min_rows:
            return ()
        # No group of enough rows shares more blocks than this.
        deepest = int(np.partition(shareable[rows], -min_rows)[-min_rows])
        depths = np.unique(np.geomspace(self._min_blocks, deepest, NUM_DEPTHS).astype(np.int64))
        order, levels = self._in_order(slots, shareable, rows, depths)
        spans = _best_spans(levels, [0, *(depths * self._block_size).tolist()], min_rows)
        groups = self._as_groups(slots, shareable, rows[order], spans, [0, *depths.tolist()])
        groups.sort(key=_saved_tokens, reverse=True)
        if sum(map(_saved_tokens, groups)) < self._thresholds.min_saved_tokens:
            return ()
        return tuple(groups)

    def _in_order(
        self, slots: Rows, shareable: Rows, rows: Rows, depths: Rows
    ) -> tuple[list[int], list[int]]:
        """Sorts rows so that rows that share most are neighbours.

        Returns:
            The order, and for each pair of neighbours the number of depths at which they agree.
        """
        blocks = self._blocks(slots[rows, None], depths)
        # After a row's own blocks come ids that no other row has.
        unique_ids = -1 - rows[:, None].astype(np.int32)
        blocks = np.where(depths <= shareable[rows, None], blocks, unique_ids)
        data, width = blocks.tobytes(), blocks.itemsize * len(depths)
        keys = [data[begin : begin + width] for begin in range(0, len(data), width)]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        blocks = blocks[order]
        parts = np.ones((len(rows) - 1, len(depths) + 1), bool)
        np.not_equal(blocks[1:], blocks[:-1], out=parts[:, :-1])
        return order, parts.argmax(axis=1).tolist()

    def _as_groups(
        self, slots: Rows, shareable: Rows, rows: Rows, spans: list["_Span"], depths: list[int]
    ) -> list[PrefixGroup]:
        """Returns the groups of spans of ordered rows, each with all blocks that its rows share."""
        owners = np.full(len(rows), len(spans))
        # A deeper span lies within a less deep one and takes its rows from it.
        for index, span in sorted(enumerate(spans), key=lambda each: each[1].level):
            owners[span.begin : span.end] = index
        counts = np.bincount(owners, minlength=len(spans))[: len(spans)]
        # A span may have lost too many rows to deeper spans.
        found = (counts >= self._thresholds.min_rows).nonzero()[0]
        if not len(found):
            return []
        levels = np.array([span.level for span in spans])[found]
        counts = counts[found]
        # From here on arrays are ordered by group.
        members = np.concatenate([rows[owners == index] for index in found])
        begins = np.cumsum(counts) - counts
        # The rows of a group differ at the next depth; a binary search finds the last same block.
        ends, limits = np.array([depths, [*depths[1:], depths[-1]]])[:, levels]
        limits = np.minimum(limits, np.minimum.reduceat(shareable[members], begins))
        while (ends < limits).any():
            middles = (ends + limits + 1) // 2
            blocks = self._blocks(slots[members], np.repeat(middles, counts))
            is_same = np.logical_and.reduceat(blocks == np.repeat(blocks[begins], counts), begins)
            ends = np.where(is_same, middles, ends)
            limits = np.where(is_same, limits, middles - 1)
        return [
            PrefixGroup(members=each, num_tokens=end * self._block_size)
            for each, end in zip(np.split(members, begins[1:]), ends.tolist(), strict=True)
        ]

    def _blocks(self, slots: Rows, depths: Rows | int) -> BlockTables:
        """Returns the block at a depth of each slot; depth 1 is the first block."""
        blocks: BlockTables = self._tables.take(slots * self._tables.shape[1] + (depths - 1))
        return blocks


class _Span(NamedTuple):
    """Neighbouring rows that form a group, without the rows of deeper spans within."""

    saved_tokens: int
    begin: int
    end: int
    num_rows: int
    level: int


def _best_spans(levels: list[int], num_tokens: list[int], min_rows: int) -> list[_Span]:
    """Returns groups of ordered rows that save the most tokens, or nearly the most.

    Args:
        levels: [num_rows - 1]: number of depths at which a row agrees with the next one.
        num_tokens: Shared tokens by level; level 0 shares none.
        min_rows: Lower bound on the rows of a group.
    """
    # Open spans, by rising level: level, first row, and closed groups within.
    stack: list[tuple[int, int, list[_Span]]] = [(0, 0, [])]
    last = 0
    for row, level in enumerate([*levels, 0]):
        if level == last:
            continue
        begin, last = row, level
        inner: list[_Span] = []
        while stack[-1][0] > level:
            ended, begin, within = stack.pop()
            if row + 1 - begin >= min_rows:
                within += inner
                inner = _closed(within, begin, row + 1, ended, num_tokens[ended], min_rows)
        if stack[-1][0] < level:
            stack.append((level, begin, inner))
        else:
            stack[-1][2].extend(inner)
    return _best(stack[0][2])


def _closed(
    within: list[_Span], begin: int, end: int, level: int, num_tokens: int, min_rows: int
) -> list[_Span]:
    """Returns the groups among rows that agree up to a level.

    Some of these rows share more among themselves. They stay a group of their own if this saves
    more tokens than joining the group of all rows.
    """
    within = _best(within)
    kept = [span for span in within if span.saved_tokens > span.num_rows * num_tokens]
    num_rest = end - begin - sum([span.num_rows for span in kept])
    if num_rest < min_rows:
        return within
    return [*kept, _Span((num_rest - 1) * num_tokens, begin, end, num_rest, level)]


def _best(spans: list[_Span]) -> list[_Span]:
    if len(spans) <= MAX_PREFIX_GROUPS:
        return spans
    return sorted(spans, reverse=True)[:MAX_PREFIX_GROUPS]


def _saved_tokens(group: PrefixGroup) -> int:
    return (len(group.members) - 1) * group.num_tokens


class PrefixInput:
    """Groups of the steps of one shape, on the device, always at the same addresses.

    Args:
        num_seqs: Sequences of a step, padding included.
        num_kv_heads: Key heads of the model's attention.
        device: Device of the steps.
    """

    def __init__(self, num_seqs: int, num_kv_heads: int, device: torch.device) -> None:
        self._table = PrefixTable(num_seqs, num_kv_heads)
        self._packed = torch.zeros(self._table.size, dtype=torch.int32, device=device)
        self._groups: Sequence[PrefixGroup] = ()
        self.shared: SharedPrefixes = self._table.view(self._packed)

    def fill(self, groups: Sequence[PrefixGroup]) -> None:
        """Sends groups, unless they are the same object as in the step before."""
        if groups is not self._groups:
            self._groups = groups
            self._packed.copy_(upload(self._table.packed(groups), self._packed.device))
