"""Every running sequence as a row on the device, and a plan as changes of those rows.

Rows hold what later steps need and the host may not know yet: block table, length, last token.
The host sends one array of int64 a step; positions, lengths and cache slots are computed from the
rows on the device, so that a step can be enqueued while the one before is still running.

Behind the rows of the slots lies one more, the padding row: no token, and a block that nobody else
has. A step that is padded to a fixed shape computes on it and changes nothing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from openinfer_nn import StepInputs
from openinfer_runtime._shapes import StepShape
from openinfer_sampler import upload
from openinfer_scheduler import PlannedRow, StepPlan

Indices = npt.NDArray[np.int64]

_UNKNOWN = -1
"""In place of a token that only the device knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRows:
    """What the host knows of a plan's rows.

    Attributes:
        slots: by row of the plan.
        counts: likewise, tokens forwarded.
        sampled_rows: [num_sampled]: rows of the plan that are sampled.
        sampled_slots: [num_sampled]: their slots.
        chunk_starts: by row of the plan, first position forwarded.
        token_starts: by row of the plan, where its tokens begin in the step; one more at the end.
        token_ids: [num_tokens], -1 where only the device knows one.
    """

    slots: Indices
    counts: Indices
    sampled_rows: Indices
    sampled_slots: Indices
    chunk_starts: Indices
    token_starts: Indices
    token_ids: Indices

    @property
    def num_tokens(self) -> int:
        """Tokens forwarded by all rows."""
        return len(self.token_ids)

    def by_token(self) -> tuple[Indices, Indices]:
        """[num_tokens] each: the slot of each token, and its place among its row's tokens."""
        if self.num_tokens == len(self.slots):
            return self.slots, np.zeros_like(self.slots)
        offsets = np.arange(self.num_tokens) - self.token_starts[:-1].repeat(self.counts)
        return self.slots.repeat(self.counts), offsets


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


class StaticStep:
    """The input of every step of one shape, always in the same place.

    As long as no plan is in it, it is a step of nothing but padding.
    """

    def __init__(self, shape: StepShape, padding_slot: int, device: torch.device) -> None:
        self.shape = shape
        self._padding_slot = padding_slot
        seqs, tokens = shape.num_seqs, shape.num_tokens
        self._sizes = [seqs, seqs, seqs + 1, seqs, seqs, tokens, tokens, tokens]
        self._host = self._padding()
        self._device = upload(self._host.copy(), device).clone()

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """What `RowTable.advance` takes."""
        return self._device.split_with_sizes(self._sizes)

    def fill(self, rows: HostRows) -> None:
        """Sends a plan's rows, unless they are those of the step before."""
        packed = self._padding()
        slots, counts, begins, last, draw_slots, token_ids, token_slots, offsets = np.split(
            packed, np.cumsum(self._sizes[:-1])
        )
        num_rows, num_tokens = len(rows.slots), rows.num_tokens
        slots[:num_rows], counts[:num_rows] = rows.slots, rows.counts
        if not self.shape.is_decode:
            begins[:num_rows], begins[num_rows:] = rows.token_starts[:-1], num_tokens
        last[:num_rows] = rows.token_starts[1:] - 1
        draw_slots[rows.sampled_rows] = rows.sampled_slots
        token_ids[:num_tokens] = rows.token_ids
        token_slots[:num_tokens], offsets[:num_tokens] = rows.by_token()
        if not np.array_equal(packed, self._host):
            self._host = packed
            self._device.copy_(upload(packed, self._device.device))

    def _padding(self) -> Indices:
        padding = np.zeros(sum(self._sizes), np.int64)
        slots, _, begins, _, draw_slots, _, token_slots, _ = np.split(
            padding, np.cumsum(self._sizes[:-1])
        )
        slots[:] = draw_slots[:] = token_slots[:] = self._padding_slot
        if self.shape.is_decode:
            # Each has a row of its own in the output of attention, for its zeros.
            begins[:] = np.arange(len(begins))
        return padding


class RowTable:
    """Block table, length and last token of every slot, and of padding."""

    def __init__(
        self,
        *,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        padding_block: int,
        device: torch.device,
    ) -> None:
        """Allocates the rows; one cache group, the *full* one.

        Args:
            num_slots: rows.
            max_model_len: longest sequence.
            block_size: tokens of a block.
            padding_block: where padding writes; no sequence ever has this block.
            device: of the tables.
        """
        self.padding_slot = num_slots
        self._block_size = block_size
        self._device = device
        self._max_blocks = -(-max_model_len // block_size)
        shape = (num_slots + 1, self._max_blocks)
        self._block_table = torch.zeros(shape, dtype=torch.int32, device=device)
        self._block_table[num_slots] = padding_block
        self._seq_lens = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self._last_token = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        # The host's own count, for the bounds of a launch and the columns of new blocks.
        self._host_seq_lens = np.zeros(num_slots, np.int64)
        self._num_blocks = [0] * num_slots

    @property
    def max_seq_len(self) -> int:
        """What no sequence is longer than."""
        return self._max_blocks * self._block_size

    def begin(self, plan: StepPlan) -> tuple[HostRows, DeviceRows]:
        """Applies a plan's changes and returns its rows. The plan must have some."""
        changes = self._changes(plan)
        rows = self._host_rows(plan)
        token_slots, offsets = rows.by_token()
        split = self._send(
            *changes,
            rows.slots,
            rows.counts,
            rows.token_starts,
            rows.token_starts[rows.sampled_rows + 1] - 1,
            rows.sampled_slots,
            rows.token_ids,
            token_slots,
            offsets,
        )
        self._apply(*split[:4])
        max_seqlen_k = int((rows.chunk_starts + rows.counts).max())
        return rows, self.advance(split[4:], int(rows.counts.max()), max_seqlen_k)

    def begin_static(self, plan: StepPlan, step: StaticStep) -> HostRows:
        """Applies a plan's changes and puts its rows in `step`, for `advance` to take."""
        changes = self._changes(plan)
        if any(map(len, changes)):
            self._apply(*self._send(*changes))
        rows = self._host_rows(plan)
        step.fill(rows)
        return rows

    def advance(
        self, parts: tuple[torch.Tensor, ...], max_seqlen_q: int, max_seqlen_k: int
    ) -> DeviceRows:
        """Lengthens the rows of a step by its tokens. Reads nothing but tensors.

        Args:
            parts: int64, on the device: slots, counts and begins of the sequences; index of the
                token and slot of each draw; id, slot and offset of each token.
            max_seqlen_q: tokens of a sequence in this step at most.
            max_seqlen_k: tokens of a sequence after this step at most.
        """
        slots, counts, begins, logits_indices, draw_slots, token_ids, token_slots, offsets = parts
        last = self._last_token.index_select(0, token_slots)
        # A token's position: its row's length before the step, and its place among its tokens.
        positions = self._seq_lens.index_select(0, token_slots).add_(offsets)
        self._seq_lens.index_add_(0, slots, counts)
        column = torch.div(positions, self._block_size, rounding_mode="floor")
        cells = column.add_(token_slots, alpha=self._max_blocks)
        block = self._block_table.view(-1).index_select(0, cells)
        inputs = StepInputs(
            token_ids=torch.where(token_ids < 0, last, token_ids),
            positions=positions,
            cu_seqlens_q=begins.to(torch.int32),
            seq_lens=self._seq_lens.index_select(0, slots).to(torch.int32),
            block_table=self._block_table.index_select(0, slots),
            slot_mapping=(positions % self._block_size).add_(block, alpha=self._block_size),
            logits_indices=logits_indices,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
        )
        # The token to draw goes where the sequence ends after this step.
        draw_positions = self._seq_lens.index_select(0, draw_slots)
        return DeviceRows(inputs=inputs, draw_slots=draw_slots, draw_positions=draw_positions)

    def settle(self, draw_slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Remembers what was drawn for the next forward pass of these slots."""
        self._last_token.index_copy_(0, draw_slots, token_ids)

    def _changes(self, plan: StepPlan) -> tuple[Indices, ...]:
        """Started slots and their lengths; cells of the flattened block table and their blocks."""
        start_slots = [start.slot for start in plan.starts]
        start_lens = [start.num_cached_tokens for start in plan.starts]
        self._host_seq_lens[start_slots] = start_lens
        cells, blocks = self._new_blocks(plan)
        return np.array(start_slots, np.int64), np.array(start_lens, np.int64), cells, blocks

    def _new_blocks(self, plan: StepPlan) -> tuple[Indices, Indices]:
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

    def _host_rows(self, plan: StepPlan) -> HostRows:
        slots = np.array([row.slot for row in plan.rows], np.int64)
        counts = np.array([row.num_tokens for row in plan.rows], np.int64)
        sampled_rows = np.array([row.is_sampled for row in plan.rows], bool).nonzero()[0]
        begins = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(counts, out=begins[1:])
        chunk_starts = self._host_seq_lens[slots]
        self._host_seq_lens[slots] = chunk_starts + counts
        return HostRows(
            slots=slots,
            counts=counts,
            sampled_rows=sampled_rows,
            sampled_slots=slots[sampled_rows],
            chunk_starts=chunk_starts,
            token_starts=begins,
            token_ids=_known_tokens(plan.rows, begins),
        )

    def _send(self, *parts: Indices) -> tuple[torch.Tensor, ...]:
        """All arrays in one copy, as views of it."""
        packed = upload(np.concatenate(parts), self._device)
        sizes = [len(part) for part in parts]
        return packed.split_with_sizes(sizes)

    def _apply(
        self,
        start_slots: torch.Tensor,
        start_lens: torch.Tensor,
        cells: torch.Tensor,
        blocks: torch.Tensor,
    ) -> None:
        if start_slots.numel():
            self._seq_lens.index_copy_(0, start_slots, start_lens)
        if cells.numel():
            self._block_table.view(-1).index_copy_(0, cells, blocks.to(torch.int32))


def _known_tokens(rows: tuple[PlannedRow, ...], begins: Indices) -> Indices:
    """The step's tokens, -1 where only the device knows one."""
    token_ids = np.full(begins[-1], _UNKNOWN, np.int64)
    for index, row in enumerate(rows):
        if row.token_ids is not None:
            token_ids[begins[index] : begins[index + 1]] = row.token_ids
    return token_ids
