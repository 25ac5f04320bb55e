"""Every running sequence as a row on the device, and a plan as changes of those rows.

Rows hold what later steps need and the host may not know yet: block table, length, last token.
What the host knows of a step goes up as one array of int64; positions, lengths and cache slots are
computed from the rows on the device (`openinfer_kernels.AdvanceRows`), so that a step can be
enqueued while the one before is still running.

Behind the rows of the slots lies one more, the padding row: no token, and a block that nobody else
has. A step that is padded to a fixed shape computes on it and changes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from openinfer_kernels import AdvanceRowsSpec, RowTables, StepTensors, plan_advance_rows
from openinfer_nn import StepInputs
from openinfer_runtime.steps._plan_parts import (
    UNKNOWN,
    HostRows,
    Indices,
    NewBlocks,
    PlanParts,
    known_tokens,
    num_blocks,
    part_sizes,
    step_rows,
)
from openinfer_runtime.steps._static_step import StaticStep
from openinfer_runtime.steps._step_shapes import StepShape
from openinfer_sampler import upload
from openinfer_scheduler import RowStart, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    """A step on the device, ready to run.

    Attributes:
        inputs: of the forward pass.
        draw_slots: [num_logits], int64: whose tokens are drawn; the padding row's where none is.
        draw_positions: [num_logits], int64: sequence index of the token to draw.
    """

    inputs: StepInputs
    draw_slots: torch.Tensor
    draw_positions: torch.Tensor


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
        """Allocates the rows; one cache group, the *full* one.

        Args:
            num_slots: rows.
            max_model_len: longest sequence.
            block_size: tokens of a block.
            padding_block: where padding writes; no sequence ever has this block.
            last_token: [num_slots + 1], int64, on the device; whoever draws keeps it.
            device: of the tables.
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
        self._tensors = self._room(1, 1)
        # The host's own count, for the bounds of a launch and the columns of new blocks.
        self._host_seq_lens = np.zeros(num_slots, np.int64)
        self._num_blocks = np.zeros(num_slots, np.int64)
        self._host_blocks = np.zeros((num_slots, self._max_blocks), np.int32)

    @property
    def max_seq_len(self) -> int:
        """What no sequence is longer than."""
        return self._max_blocks * self._block_size

    @property
    def host_blocks(self) -> tuple[npt.NDArray[np.int32], Indices]:
        """The host's copy of block tables, and how many blocks each has; change as plans come."""
        return self._host_blocks, self._num_blocks

    def static_step(self, shape: StepShape) -> StaticStep:
        """A step of a shape, padding so far."""
        return StaticStep(
            shape,
            max_blocks=self._max_blocks,
            block_size=self._block_size,
            padding_slot=self.padding_slot,
            device=self._device,
        )

    def reserve(self, num_tokens: int, num_seqs: int) -> None:
        """Makes room for static steps of up to so many, before the first is recorded."""
        self._tensors = self._room(num_tokens, num_seqs)

    def draws(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Slots and positions of the first draws of a static step, see `DeviceRows`."""
        return self._tensors.draw_slots[:num_rows], self._tensors.draw_positions[:num_rows]

    def begin(self, plan: StepPlan) -> tuple[HostRows, DeviceRows]:
        """Applies a plan's changes and returns its rows. The plan must have some."""
        parts = self._parts(plan)
        arrays = parts.arrays(self._new_blocks(plan, range(len(plan.rows))))
        rows, num_tokens = parts.rows, len(parts.token_ids)
        num_seqs, num_drawn = len(rows.slots), len(rows.sampled_rows)
        sizes = part_sizes(num_seqs, num_tokens, len(arrays[-1]))
        packed = upload(np.concatenate([*arrays, rows.sampled_rows]), self._device)
        step = step_rows(packed[: sum(sizes)], sizes, is_decode=num_tokens == num_seqs)
        out = self._room(num_tokens, num_seqs)
        self._advance(self._tables, step, out)
        counts = np.diff(rows.token_starts)
        max_seqlen_k = int((rows.chunk_starts + counts).max())
        drawn = _device_rows(out, int(counts.max()), max_seqlen_k)
        return rows, drawn if num_drawn == num_seqs else _only(drawn, packed[sum(sizes) :])

    def begin_static(self, plan: StepPlan, step: StaticStep) -> HostRows:
        """Applies a plan's changes and puts its rows in `step`, for `advance` to take."""
        growing: Iterable[int]
        repeated = step.repeated(plan)
        if repeated is None:
            parts, growing = self._parts(plan), range(len(plan.rows))
        else:
            parts, growing = repeated
            self._host_seq_lens[parts.rows.slots] += 1
        new = self._new_blocks(plan, growing)
        if num_blocks(new) > step.num_new_blocks:
            for each in new:
                self._enter(plan.rows[each.row].slot, each)
            new = []
        step.fill(plan, parts, new)
        return parts.rows

    def advance(self, step: StaticStep) -> DeviceRows:
        """Lengthens the rows of a step by its tokens. Reads nothing but tensors.

        What it returns is where every static step's is: it holds until the next one.
        """
        shape = step.shape
        out = self._tensors.first(shape.num_tokens, shape.num_seqs)
        self._advance(self._tables, step.rows, out)
        return _device_rows(out, shape.max_seqlen_q, self.max_seq_len)

    def _room(self, num_tokens: int, num_seqs: int) -> StepTensors:
        return StepTensors.allocate(num_tokens, num_seqs, self._max_blocks, self._device)

    def _parts(self, plan: StepPlan) -> PlanParts:
        """What the plan says of its rows, but for new blocks; counts their tokens."""
        rows, num_rows = plan.rows, len(plan.rows)
        slots = np.array([row.slot for row in rows], np.int64)
        is_sampled = np.array([row.is_sampled for row in rows], bool)
        counts = np.array([row.num_tokens for row in rows], np.int64)
        token_starts = np.zeros(num_rows + 1, np.int64)
        counts.cumsum(out=token_starts[1:])
        start_lens = self._start_lens(plan)
        chunk_starts = self._host_seq_lens[slots]
        self._host_seq_lens[slots] = chunk_starts + counts
        sampled_rows = is_sampled.nonzero()[0]
        token_ids = known_tokens(rows, token_starts)
        return PlanParts(
            rows=HostRows(
                slots=slots,
                sampled_rows=sampled_rows,
                sampled_slots=slots[sampled_rows],
                chunk_starts=chunk_starts,
                token_starts=token_starts,
            ),
            draw_slots=np.where(is_sampled, slots, self.padding_slot),
            start_lens=start_lens,
            token_ids=np.full(num_rows, UNKNOWN) if token_ids is None else token_ids,
            is_plain=token_ids is None and not plan.starts,
        )

    def _start_lens(self, plan: StepPlan) -> Indices:
        """By row, tokens that a sequence starts with; -1 of one that goes on."""
        if not plan.starts:
            return np.full(len(plan.rows), UNKNOWN)
        starts = {start.slot: start for start in plan.starts}
        for slot, start in starts.items():
            self._host_seq_lens[slot] = start.num_cached_tokens
            self._num_blocks[slot] = 0
        found = [starts.pop(row.slot, None) for row in plan.rows]
        for start in starts.values():
            self._start_alone(start)
        lens = [UNKNOWN if start is None else start.num_cached_tokens for start in found]
        return np.array(lens, np.int64)

    def _start_alone(self, start: RowStart) -> None:
        """Enters a sequence that has no row in the plan that it starts in."""
        blocks = start.block_ids[0]
        self._tables.seq_lens[start.slot].fill_(start.num_cached_tokens)
        self._enter(start.slot, NewBlocks(0, 0, blocks))
        self._num_blocks[start.slot] = len(blocks)
        self._host_blocks[start.slot, : len(blocks)] = blocks

    def _new_blocks(self, plan: StepPlan, rows: Iterable[int]) -> list[NewBlocks]:
        """What these rows of the plan add to their rows of the block table."""
        starts = {start.slot: start.block_ids[0] for start in plan.starts}
        found = []
        for index in rows:
            row = plan.rows[index]
            blocks = row.new_block_ids[0]
            if starts and row.slot in starts:
                blocks = np.concatenate((starts[row.slot], blocks))
            if len(blocks):
                column = int(self._num_blocks[row.slot])
                self._num_blocks[row.slot] = end = column + len(blocks)
                assert end <= self._max_blocks, "a sequence outgrew the block table"
                self._host_blocks[row.slot, column:end] = blocks
                found.append(NewBlocks(index, column, blocks))
        return found

    def _enter(self, slot: int, new: NewBlocks) -> None:
        """Sends the new blocks of one row by themselves."""
        target = self._tables.block_table[slot, new.column : new.column + len(new.blocks)]
        target.copy_(upload(new.blocks.astype(np.int32), self._device))


def _device_rows(out: StepTensors, max_seqlen_q: int, max_seqlen_k: int) -> DeviceRows:
    return DeviceRows(
        inputs=StepInputs(
            token_ids=out.token_ids,
            positions=out.positions,
            cu_seqlens_q=out.cu_seqlens_q,
            seq_lens=out.seq_lens,
            block_table=out.block_table,
            slot_mapping=out.slot_mapping,
            logits_indices=out.logits_indices,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
        ),
        draw_slots=out.draw_slots,
        draw_positions=out.draw_positions,
    )


def _only(rows: DeviceRows, index: torch.Tensor) -> DeviceRows:
    """The same step, but only some of its sequences are drawn."""
    indices = rows.inputs.logits_indices.index_select(0, index)
    return DeviceRows(
        inputs=replace(rows.inputs, logits_indices=indices),
        draw_slots=rows.draw_slots.index_select(0, index),
        draw_positions=rows.draw_positions.index_select(0, index),
    )
