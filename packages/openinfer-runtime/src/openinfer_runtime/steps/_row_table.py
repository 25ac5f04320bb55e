"""The table of running sequences on the device. A plan is sent as changes of its rows.

Rows hold what later steps need and the host may not know yet: block table, length, last token. The
host sends one array of int64 for a step. Positions, lengths and cache slots are computed from the
rows on the device (`openinfer_kernels.AdvanceRows`), so that a step can be enqueued while the one
before is still running.

After the rows of the slots comes the padding row. It has no tokens, and its block belongs to no
sequence. A step that is padded to a fixed shape computes on it and changes nothing.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from openinfer_kernels import AdvanceRowsSpec, RowTables, StepTensors, plan_advance_rows
from openinfer_runtime.steps._step_buffers import (
    UNKNOWN,
    HostRows,
    Indices,
    NewBlocks,
    StepBuffers,
)
from openinfer_runtime.steps._step_shapes import StepShape
from openinfer_sampler import upload
from openinfer_scheduler import LOOKAHEAD, PlannedRow, RowStart, StepPlan


class RowTable:
    """Block table, length and last token of every slot, and of padding."""

    def __init__(
        self,
        *,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        padding_block: int,
        last_token: torch.Tensor,
        device: torch.device,
    ) -> None:
        """Allocates the rows, for one cache group of kind "full".

        Args:
            num_slots: Number of rows.
            max_model_len: Longest sequence, in tokens.
            block_size: Tokens per block.
            padding_block: Block that padding writes to; no sequence ever has it.
            last_token: [num_slots + 1], int64, on the device. The sampler writes it.
            device: Device of the tables.
        """
        self.padding_slot = num_slots
        self._block_size = block_size
        self._device = device
        self._max_blocks = -(-max_model_len // block_size)
        shape = (num_slots + 1, self._max_blocks)
        block_table = torch.zeros(shape, dtype=torch.int32, device=device)
        block_table[num_slots] = padding_block
        self._tables = RowTables(
            block_table=block_table,
            seq_lens=torch.zeros(num_slots + 1, dtype=torch.int64, device=device),
            last_token=last_token,
        )
        self._advance = plan_advance_rows(AdvanceRowsSpec(block_size=block_size), device)
        self._tensors = self._allocate(1, 1)
        # The host's copy gives the bounds of launches and the columns of new blocks.
        self._host_seq_lens = np.zeros(num_slots, np.int64)
        self._num_blocks = np.zeros(num_slots, np.int64)
        self._host_blocks = np.zeros((num_slots, self._max_blocks), np.int32)

    @property
    def max_seq_len(self) -> int:
        """Upper bound on the length of a sequence."""
        return self._max_blocks * self._block_size

    @property
    def host_blocks(self) -> tuple[npt.NDArray[np.int32], Indices]:
        """The host's copy of the block tables, and the number of blocks of each slot.

        Every plan changes them in place.
        """
        return self._host_blocks, self._num_blocks

    def reserve(self, num_tokens: int, num_seqs: int) -> None:
        """Allocates the outputs that all captured steps share. Call it before `captured_step`."""
        self._tensors = self._allocate(num_tokens, num_seqs)

    def draws(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns slots and positions of the first `num_rows` draws, shared by captured steps."""
        return self._tensors.draw_slots[:num_rows], self._tensors.draw_positions[:num_rows]

    def captured_step(self, shape: StepShape) -> StepBuffers:
        """Returns the buffers of a captured shape, which hold padding until a plan is entered.

        Outputs of all shapes are views of the same tensors, valid until the next step.
        """
        # Every row may append blocks in the same step. If more are appended, because several
        # prompts start with long prefix hits, each row's blocks are sent on their own.
        num_new_blocks = (1 + LOOKAHEAD) * shape.num_seqs + shape.num_tokens // self._block_size
        if not shape.is_decode:
            num_new_blocks += self._max_blocks
        buffers = StepBuffers(
            shape,
            self._tensors.first(shape.num_tokens, shape.num_seqs),
            num_new_blocks=num_new_blocks,
            max_seqlen_q=shape.max_seqlen_q,
            max_seqlen_k=self.max_seq_len,
            padding_slot=self.padding_slot,
            device=self._device,
        )
        buffers.fill_padding()
        return buffers

    def enter(self, plan: StepPlan, buffers: StepBuffers) -> HostRows:
        """Applies a plan's changes and sends its rows to the buffers of a captured shape."""
        repeated = buffers.changed_rows(plan)
        if repeated is None:
            rows = self._host_rows(plan)
            new = self._append_blocks(plan, range(len(plan.rows)))
        else:
            rows, changed = repeated
            self._host_seq_lens[rows.slots] += 1
            new = self._append_blocks(plan, changed)
        if _num_blocks(new) > buffers.num_new_blocks:
            for each in new:
                self._send_blocks(plan.rows[each.row].slot, each)
            new = []
        buffers.fill(plan, rows, new)
        return rows

    def enter_exact(self, plan: StepPlan) -> tuple[HostRows, StepBuffers]:
        """Applies a plan's changes and returns buffers of exactly its size, for one step."""
        rows = self._host_rows(plan)
        new = self._append_blocks(plan, range(len(plan.rows)))
        counts = np.diff(rows.token_starts)
        num_tokens, num_seqs = int(rows.token_starts[-1]), len(rows.slots)
        buffers = StepBuffers(
            StepShape(num_tokens, num_seqs, is_decode=num_tokens == num_seqs),
            self._allocate(num_tokens, num_seqs),
            num_new_blocks=_num_blocks(new),
            max_seqlen_q=int(counts.max()),
            max_seqlen_k=int((rows.chunk_starts + counts).max()),
            padding_slot=self.padding_slot,
            device=self._device,
        )
        buffers.fill(plan, rows, new)
        return rows, buffers

    def advance(self, buffers: StepBuffers) -> None:
        """Lengthens the rows of a step by its tokens and fills `buffers.inputs`.

        Reads tensors alone, so that it can be captured.
        """
        self._advance(self._tables, buffers.rows, buffers.tensors)

    def _allocate(self, num_tokens: int, num_seqs: int) -> StepTensors:
        return StepTensors.allocate(num_tokens, num_seqs, self._max_blocks, self._device)

    def _host_rows(self, plan: StepPlan) -> HostRows:
        """Returns the columns of a plan and counts its tokens."""
        rows, num_rows = plan.rows, len(plan.rows)
        slots = np.fromiter([row.slot for row in rows], np.int64, num_rows)
        counts = np.fromiter([row.num_tokens for row in rows], np.int64, num_rows)
        token_starts = np.zeros(num_rows + 1, np.int64)
        counts.cumsum(out=token_starts[1:])
        start_lens = self._start_rows(plan) if plan.starts else None
        chunk_starts = self._host_seq_lens[slots]
        self._host_seq_lens[slots] = chunk_starts + counts
        is_sampled = np.fromiter([row.is_sampled for row in rows], bool, num_rows)
        sampled_rows = is_sampled.nonzero()[0]
        return HostRows(
            slots=slots,
            token_starts=token_starts,
            chunk_starts=chunk_starts,
            sampled_rows=sampled_rows,
            sampled_slots=slots[sampled_rows],
            start_lens=start_lens,
            token_ids=_known_tokens(rows, token_starts),
        )

    def _start_rows(self, plan: StepPlan) -> Indices:
        """Resets the rows of sequences that start; returns `HostRows.start_lens`."""
        starts = {start.slot: start for start in plan.starts}
        for slot, start in starts.items():
            assert start.adapter_slot is None, "this executor has no adapters"
            self._host_seq_lens[slot] = start.num_cached_tokens
            self._num_blocks[slot] = 0
        found = [starts.pop(row.slot, None) for row in plan.rows]
        for start in starts.values():
            self._start_alone(start)
        lens = [UNKNOWN if start is None else start.num_cached_tokens for start in found]
        return np.array(lens, np.int64)

    def _start_alone(self, start: RowStart) -> None:
        """Enters a sequence that has no row in the plan in which it starts."""
        (blocks,) = start.block_ids
        self._tables.seq_lens[start.slot].fill_(start.num_cached_tokens)
        self._send_blocks(start.slot, NewBlocks(0, 0, blocks))
        self._num_blocks[start.slot] = len(blocks)
        self._host_blocks[start.slot, : len(blocks)] = blocks

    def _append_blocks(self, plan: StepPlan, rows: Iterable[int]) -> list[NewBlocks]:
        """Appends blocks of rows of a plan to the host's tables and returns them."""
        starts = {start.slot: start for start in plan.starts}
        found = []
        for index in rows:
            row = plan.rows[index]
            assert row.num_tokens == 1 or row.token_ids is not None, "this executor runs no drafts"
            (blocks,) = row.new_block_ids
            if starts and row.slot in starts:
                (cached,) = starts[row.slot].block_ids
                blocks = np.concatenate((cached, blocks))
            if len(blocks):
                column = int(self._num_blocks[row.slot])
                self._num_blocks[row.slot] = end = column + len(blocks)
                assert end <= self._max_blocks, "a sequence outgrew the block table"
                self._host_blocks[row.slot, column:end] = blocks
                found.append(NewBlocks(index, column, blocks))
        return found

    def _send_blocks(self, slot: int, new: NewBlocks) -> None:
        """Sends the new blocks of one row on their own."""
        target = self._tables.block_table[slot, new.column : new.column + len(new.blocks)]
        target.copy_(upload(new.blocks.astype(np.int32), self._device))


def _num_blocks(new: list[NewBlocks]) -> int:
    return sum(len(each.blocks) for each in new)


def _known_tokens(rows: tuple[PlannedRow, ...], token_starts: Indices) -> Indices | None:
    """Returns `HostRows.token_ids`."""
    # Decode rows come first.
    if rows[-1].token_ids is None:
        return None
    token_ids = np.full(token_starts[-1], UNKNOWN, np.int64)
    for index, row in enumerate(rows):
        if row.token_ids is not None:
            token_ids[token_starts[index] : token_starts[index + 1]] = row.token_ids
    return token_ids
