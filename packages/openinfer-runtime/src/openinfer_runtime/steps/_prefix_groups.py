"""Which rows of a decode step begin with the same cache blocks, found when rows come and go.

Sequences that hit the same cached prefix have the same blocks in their tables, so the blocks' ids
tell. Nobody shares who has not hit a long prefix or is not hit: where too few rows have, nothing is
looked at. Groups hold as long as the rows of a step stay the same ones.

Tables are not read through. A block is found by a key that covers all tokens before its end, so
rows with the same block somewhere have the same tokens up to there. Tables are compared at a few
depths, and cost what they cost however rows are nested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
from openinfer_scheduler import StepPlan

BlockTables = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int64]

NUM_DEPTHS = 32
"""Blocks of a table that tell groups apart. Each is at most a fifth deeper than the one before in
tables of 131,072 tokens: what groups that part between two of them would save more is given up."""


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
        min_rows = self._thresholds.min_rows
        if len(rows) < min_rows:
            return ()
        # Deeper than so no group of enough rows can be.
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
        """Puts rows that share most next to each other.

        Returns:
            The order, and by neighbours at how many of the depths they are still the same.
        """
        blocks = self._blocks(slots[rows, None], depths)
        # What lies behind a row's own is like nobody's.
        nobodys = -1 - rows[:, None].astype(np.int32)
        blocks = np.where(depths <= shareable[rows, None], blocks, nobodys)
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
        """Groups of spans of rows in order, each up to the very block where its rows part."""
        owners = np.full(len(rows), len(spans))
        # What is deeper lies within what is not, and has its rows first.
        for index, span in sorted(enumerate(spans), key=lambda each: each[1].level):
            owners[span.begin : span.end] = index
        counts = np.bincount(owners, minlength=len(spans))[: len(spans)]
        # Rows of a group that was given up for better ones may have left none to another.
        found = (counts >= self._thresholds.min_rows).nonzero()[0]
        if not len(found):
            return []
        levels = np.array([span.level for span in spans])[found]
        counts = counts[found]
        # By group from here on.
        members = np.concatenate([rows[owners == index] for index in found])
        begins = np.cumsum(counts) - counts
        # They part before the next depth looked at.
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
        """The last of so many blocks of slots."""
        blocks: BlockTables = self._tables.take(slots * self._tables.shape[1] + (depths - 1))
        return blocks


class _Span(NamedTuple):
    """Neighbours of an order that make a group, without those of deeper spans within."""

    saved_tokens: int
    begin: int
    end: int
    num_rows: int
    level: int


def _best_spans(levels: list[int], num_tokens: list[int], min_rows: int) -> list[_Span]:
    """The groups of ordered rows that save most, or nearly.

    Args:
        levels: [num_rows - 1]: how much a row shares with its next.
        num_tokens: by level; level 0 is nothing shared.
        min_rows: of a group.
    """
    # Open spans, of rising levels: level, first row, and groups within that have ended.
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
    """Groups of rows that are the same up to a level.

    Some share more among themselves. They stay a group of their own if that saves more than
    their part in the group of all.
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
