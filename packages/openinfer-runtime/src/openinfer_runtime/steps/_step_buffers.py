"""Input of the steps of one shape: written on the host, sent in one copy, read on the device.

A plan goes through three forms. `HostRows` has its rows as columns. `StepBuffers` packs these
columns into one array of int64, whose copy on the device `advance_rows` reads. `StepInputs` is what
`advance_rows` makes of it for the model.
"""

from collections.abc import Sequence
from itertools import accumulate, compress, pairwise
from operator import is_not
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from openinfer_kernels import StepRows, StepTensors
from openinfer_runtime.steps._step_inputs import step_inputs
from openinfer_runtime.steps._step_shapes import StepShape
from openinfer_runtime.steps._transfer import staged
from openinfer_scheduler import PlannedRow, StepPlan

Indices = npt.NDArray[np.int64]
Blocks = npt.NDArray[np.int32]

UNKNOWN = -1
"""Token id that only the device knows; start length of a sequence that does not start."""


class HostRows(NamedTuple):
    """The rows of a plan as columns, on the host.

    Attributes:
        slots: [num_rows].
        token_starts: [num_rows + 1]: index of each row's first token in the step, and the total.
        chunk_starts: [num_rows]: first position that a row forwards. While a decode batch repeats,
            the positions are those of its first step.
        sampled_rows: [num_sampled]: indices of the rows that are sampled.
        sampled_slots: [num_sampled]: slots of these rows.
        start_lens: [num_rows]: cached tokens of a sequence that starts, `UNKNOWN` for the others;
            None if no sequence starts.
        token_ids: [num_tokens]: known tokens, `UNKNOWN` for the others; None if the step forwards
            the token drawn last in every row.
    """

    slots: Indices
    token_starts: Indices
    chunk_starts: Indices
    sampled_rows: Indices
    sampled_slots: Indices
    start_lens: Indices | None
    token_ids: Indices | None


class NewBlocks(NamedTuple):
    """Blocks that a row of a plan appends to its sequence's block table."""

    row: int
    column: int
    blocks: Blocks


class _Parts(NamedTuple):
    """The host's array, cut into the columns of `StepRows`, and `sampled_rows`."""

    slots: Indices
    begins: Indices
    draw_slots: Indices
    start_lens: Indices
    new_columns: Indices
    new_begins: Indices
    token_ids: Indices
    sampled_rows: Indices
    new_blocks: Indices


class StepBuffers:
    """Input of every step of one shape, always at the same addresses.

    The host keeps what it sent last. If a plan repeats the one before, nothing is sent.

    Args:
        shape: Shape of the steps.
        tensors: Output of `advance_rows` for the shape.
        num_new_blocks: Upper bound on the blocks that one step appends.
        max_seqlen_q: Upper bound on the tokens that one sequence forwards.
        max_seqlen_k: Upper bound on the length of a sequence.
        padding_slot: Slot of padding.
        device: Device of the steps.

    Attributes:
        shape: Shape of the steps.
        num_new_blocks: Upper bound on the blocks that one step appends.
        rows: What `advance_rows` reads.
        tensors: What `advance_rows` writes.
        inputs: What the model reads; views of `tensors`.
        sampled_rows: [num_seqs], int64, on the device: `HostRows.sampled_rows`, then 0.
    """

    def __init__(
        self,
        shape: StepShape,
        tensors: StepTensors,
        *,
        num_new_blocks: int,
        max_seqlen_q: int,
        max_seqlen_k: int,
        padding_slot: int,
        device: torch.device,
    ) -> None:
        self.shape = shape
        self.num_new_blocks = num_new_blocks
        self.tensors = tensors
        self.inputs = step_inputs(tensors, max_seqlen_q, max_seqlen_k)
        self._padding_slot = padding_slot
        seqs, tokens = shape.num_seqs, shape.num_tokens
        # New blocks are the last part, so that a copy may end with the blocks of its step.
        sizes = [seqs, seqs + 1, seqs, seqs, seqs, seqs + 1, tokens, seqs, num_new_blocks]
        ends = list(accumulate(sizes))
        self._num_fixed = ends[-2]
        self._numbers = np.empty(ends[-1], np.int64)
        self._host = _Parts(*(self._numbers[a:b] for a, b in pairwise([0, *ends])))
        if shape.is_decode:
            # Padding has a token too: attention then writes zeros to a row of its own.
            self._host.begins[:] = np.arange(seqs + 1)
        self._device = torch.empty(len(self._numbers), dtype=torch.int64, device=device)
        tensors_by_part = self._device.split_with_sizes(sizes)
        parts = dict(zip(_Parts._fields, tensors_by_part, strict=True))
        self.sampled_rows = parts.pop("sampled_rows")
        self.rows = StepRows(**parts, is_decode=shape.is_decode)
        self._held: tuple[tuple[PlannedRow, ...], HostRows] | None = None
        self._grown: list[int] = []

    def changed_rows(self, plan: StepPlan) -> tuple[HostRows, list[int]] | None:
        """Compares a plan with the one that was sent last.

        Returns:
            The columns of both, and the rows of the plan that may append blocks; None if the plan
            differs in anything else.
        """
        rows = plan.rows
        if self._held is None or plan.starts or len(rows) != len(self._held[0]):
            return None
        held, host_rows = self._held
        changed = list(compress(range(len(rows)), map(is_not, rows, held)))
        for index in changed:
            row, old = rows[index], held[index]
            if row.slot != old.slot or row.is_sampled != old.is_sampled or not _is_decode(row):
                return None
        # If the plan has the same row again, its blocks are appended again.
        changed += [index for index in self._grown if rows[index] is held[index]]
        return host_rows, changed

    def fill(self, plan: StepPlan, rows: HostRows, new: Sequence[NewBlocks]) -> None:
        """Sends a plan, unless it repeats the one that was sent last.

        Args:
            plan: Plan with rows.
            rows: Its columns; those of `changed_rows` where it returned some.
            new: Blocks that the plan appends, at most `num_new_blocks`.
        """
        is_repeated = self._held is not None and rows is self._held[1]
        if not is_repeated:
            self._held = None  # until the rows are sent, which may fail
            self._write(rows)
        if not is_repeated or new or self._grown:
            self._send(self._write_blocks(new))
        is_decode = rows.start_lens is None and rows.token_ids is None
        self._held = (plan.rows, rows) if is_decode else None
        self._grown = [each.row for each in new]

    def fill_padding(self) -> None:
        """Sends a step of padding alone."""
        none = np.zeros(0, np.int64)
        self._write(HostRows(none, np.zeros(1, np.int64), none, none, none, None, none))
        self._send(self._write_blocks(()))
        self._held, self._grown = None, []

    def _write(self, rows: HostRows) -> None:
        host, num_rows, padding = self._host, len(rows.slots), self._padding_slot
        host.slots[:num_rows] = rows.slots
        host.slots[num_rows:] = padding
        if not self.shape.is_decode:
            host.begins[: num_rows + 1] = rows.token_starts
            host.begins[num_rows + 1 :] = rows.token_starts[-1]
        host.draw_slots.fill(padding)
        host.draw_slots[rows.sampled_rows] = rows.sampled_slots
        host.start_lens.fill(UNKNOWN)
        if rows.start_lens is not None:
            host.start_lens[:num_rows] = rows.start_lens
        num_tokens = rows.token_starts[-1]
        host.token_ids[:num_tokens] = UNKNOWN if rows.token_ids is None else rows.token_ids
        host.token_ids[num_tokens:] = 0
        host.sampled_rows[: len(rows.sampled_rows)] = rows.sampled_rows
        host.sampled_rows[len(rows.sampled_rows) :] = 0

    def _write_blocks(self, new: Sequence[NewBlocks]) -> int:
        """Writes new blocks and returns their number."""
        host = self._host
        host.new_begins.fill(0)
        if not new:
            return 0
        for row, column, blocks in new:
            host.new_columns[row], host.new_begins[row + 1] = column, len(blocks)
        np.cumsum(host.new_begins, out=host.new_begins)
        num_blocks = int(host.new_begins[-1])
        np.concatenate([each.blocks for each in new], out=host.new_blocks[:num_blocks])
        return num_blocks

    def _send(self, num_new_blocks: int) -> None:
        num_sent = self._num_fixed + num_new_blocks
        step = staged(num_sent, self._device.device)
        step.numpy()[:] = self._numbers[:num_sent]
        self._device[:num_sent].copy_(step, non_blocking=True)


def _is_decode(row: PlannedRow) -> bool:
    assert row.num_tokens == 1 or row.token_ids is not None, "this executor runs no drafts"
    return row.token_ids is None
