"""Every running sequence as a row on the device, and a plan as changes of those rows.

Rows hold what later steps need and the host may not know yet: block table, length, last token.
The host sends one array of int64 a step; positions, lengths and cache slots are computed from the
rows on the device, so that a step can be enqueued while the one before is still running.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from openinfer_nn import StepInputs
from openinfer_sampler import upload
from openinfer_scheduler import PlannedRow, StepPlan

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """A plan, ready to run.

    Attributes:
        inputs: of the forward pass.
        sampled_rows: [num_sampled], on the host: rows of the plan that are sampled.
        sampled_slots: [num_sampled], on the host: their slots.
        device_slots: [num_sampled], int64, on the device: likewise.
        draw_positions: [num_sampled], int64, on the device: sequence index of the token to draw.
        chunk_starts: by row of the plan, first position forwarded.
        token_starts: by row of the plan, where its tokens begin in the step; one more at the end.
    """

    inputs: StepInputs
    sampled_rows: Indices
    sampled_slots: Indices
    device_slots: torch.Tensor
    draw_positions: torch.Tensor
    chunk_starts: Indices
    token_starts: Indices


class RowTable:
    """Block table, length and last token of every slot."""

    def __init__(
        self, *, num_slots: int, max_model_len: int, block_size: int, device: torch.device
    ) -> None:
        """Allocates the rows; one cache group, the *full* one."""
        self._block_size = block_size
        self._device = device
        self._max_blocks = -(-max_model_len // block_size)
        shape = (num_slots, self._max_blocks)
        self._block_table = torch.zeros(shape, dtype=torch.int32, device=device)
        self._seq_lens = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._last_token = torch.zeros(num_slots, dtype=torch.int64, device=device)
        # The host's own count, for the bounds of a launch and the columns of new blocks.
        self._host_seq_lens = np.zeros(num_slots, np.int64)
        self._num_blocks = [0] * num_slots

    def begin(self, plan: StepPlan) -> StepRows:
        """Applies a plan's changes and returns its inputs. The plan must have rows."""
        start_slots = [start.slot for start in plan.starts]
        start_lens = [start.num_cached_tokens for start in plan.starts]
        self._host_seq_lens[start_slots] = start_lens
        cells, blocks = self._new_blocks(plan)

        slots = np.array([row.slot for row in plan.rows], np.int64)
        counts = np.array([row.num_tokens for row in plan.rows], np.int64)
        sampled_rows = np.array([row.is_sampled for row in plan.rows], bool).nonzero()[0]
        begins = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(counts, out=begins[1:])
        token_ids, unknown_rows = _known_tokens(plan.rows, begins)
        token_slots, offsets = slots, np.zeros_like(slots)
        if len(token_ids) > len(slots):
            token_slots = slots.repeat(counts)
            offsets = np.arange(len(token_ids)) - begins[:-1].repeat(counts)
        chunk_starts = self._host_seq_lens[slots]
        self._host_seq_lens[slots] = seq_lens = chunk_starts + counts
        sampled_slots = slots[sampled_rows]

        split = self._send(
            np.array(start_slots, np.int64),
            np.array(start_lens, np.int64),
            cells,
            blocks,
            slots,
            counts,
            begins,
            token_ids,
            token_slots,
            offsets,
            begins[unknown_rows],
            slots[unknown_rows],
            begins[sampled_rows + 1] - 1,
            sampled_slots,
        )
        inputs = self._advance(split, int(counts.max()), int(seq_lens.max()))
        return StepRows(
            inputs=inputs,
            sampled_rows=sampled_rows,
            sampled_slots=sampled_slots,
            device_slots=split[-1],
            # The token to draw goes where the sequence ends after this step.
            draw_positions=self._seq_lens.index_select(0, split[-1]),
            chunk_starts=chunk_starts,
            token_starts=begins,
        )

    def settle(self, device_slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Remembers what was drawn for the next forward pass of these slots."""
        self._last_token.index_copy_(0, device_slots, token_ids)

    def _new_blocks(self, plan: StepPlan) -> tuple[Indices, Indices]:
        """Cells of the flattened block table and the blocks that go there."""
        cells: list[Indices] = []
        blocks: list[npt.NDArray[np.int32]] = []

        def append(slot: int, new: npt.NDArray[np.int32]) -> None:
            if len(new) == 0:
                return
            column = self._num_blocks[slot]
            self._num_blocks[slot] = end = column + len(new)
            assert end <= self._max_blocks, "a sequence outgrew the block table"
            cells.append(np.arange(column, end) + slot * self._max_blocks)
            blocks.append(new)

        for start in plan.starts:
            self._num_blocks[start.slot] = 0
            append(start.slot, start.block_ids[0])
        for row in plan.rows:
            append(row.slot, row.new_block_ids[0])
        if not cells:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate(cells), np.concatenate(blocks).astype(np.int64)

    def _send(self, *parts: Indices) -> tuple[torch.Tensor, ...]:
        """All arrays in one copy, as views of it."""
        packed = upload(np.concatenate(parts), self._device)
        sizes = [len(part) for part in parts]
        return packed.split_with_sizes(sizes)

    def _advance(
        self, split: tuple[torch.Tensor, ...], max_seqlen_q: int, max_seqlen_k: int
    ) -> StepInputs:
        (
            start_slots, start_lens, cells, blocks, slots, counts, begins, token_ids, token_slots,
            offsets, unknown_at, unknown_slots, logits_indices, _,
        ) = split  # fmt: skip
        table = self._block_table.view(-1)
        if start_slots.numel():
            self._seq_lens.index_copy_(0, start_slots, start_lens)
        if cells.numel():
            table.index_copy_(0, cells, blocks.to(torch.int32))
        if unknown_at.numel():
            last = self._last_token.index_select(0, unknown_slots)
            token_ids = token_ids.index_copy(0, unknown_at, last)

        # A token's position: its row's length before the step, and its place among its tokens.
        positions = self._seq_lens.index_select(0, token_slots).add_(offsets)
        self._seq_lens.index_add_(0, slots, counts)
        column = torch.div(positions, self._block_size, rounding_mode="floor")
        block = table.index_select(0, column.add_(token_slots, alpha=self._max_blocks))
        return StepInputs(
            token_ids=token_ids,
            positions=positions,
            cu_seqlens_q=begins.to(torch.int32),
            seq_lens=self._seq_lens.index_select(0, slots).to(torch.int32),
            block_table=self._block_table.index_select(0, slots),
            slot_mapping=(positions % self._block_size).add_(block, alpha=self._block_size),
            logits_indices=logits_indices,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
        )


def _known_tokens(rows: tuple[PlannedRow, ...], begins: Indices) -> tuple[Indices, Indices]:
    """The step's tokens, 0 where only the device knows one, and the rows where that is so."""
    token_ids = np.zeros(begins[-1], np.int64)
    unknown_rows = []
    for index, row in enumerate(rows):
        if row.token_ids is None:
            unknown_rows.append(index)
        else:
            token_ids[begins[index] : begins[index + 1]] = row.token_ids
    return token_ids, np.array(unknown_rows, np.int64)
