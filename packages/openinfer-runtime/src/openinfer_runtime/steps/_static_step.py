"""The input of recorded steps, sent where it is not what the device has already."""

import numpy as np
import torch

from openinfer_runtime.steps._plan_parts import UNKNOWN, NewBlocks, PlanParts, part_sizes, step_rows
from openinfer_runtime.steps._step_shapes import StepShape
from openinfer_runtime.steps._transfer import staged
from openinfer_sampler import upload
from openinfer_scheduler import LOOKAHEAD, PlannedRow, StepPlan


class StaticStep:
    """The input of every step of one shape, always in the same place.

    As long as no plan is in it, it is a step of nothing but padding.

    Args:
        shape: of the steps.
        max_blocks: of a sequence.
        block_size: tokens of a block.
        padding_slot: of the rows.
        device: where to.

    Attributes:
        shape: of the steps.
        num_new_blocks: new blocks of a step at most.
        rows: what a recorded step advances by.
    """

    def __init__(
        self,
        shape: StepShape,
        *,
        max_blocks: int,
        block_size: int,
        padding_slot: int,
        device: torch.device,
    ) -> None:
        self.shape = shape
        # Room for every row to grow at once. More in one step are sent beside it, row by row: of
        # several prompts that are in the cache.
        self.num_new_blocks = (1 + LOOKAHEAD) * shape.num_seqs + shape.num_tokens // block_size
        if not shape.is_decode:
            self.num_new_blocks += max_blocks
        sizes = part_sizes(shape.num_seqs, shape.num_tokens, self.num_new_blocks)
        self._offsets = np.cumsum([0, *sizes[:-1]]).tolist()
        slots, begins, draw_slots, start_lens = self._offsets[:4]
        padding = self._padding = np.zeros(sum(sizes), np.int64)
        padding[slots:begins] = padding[draw_slots:start_lens] = padding_slot
        padding[start_lens : self._offsets[4]] = UNKNOWN
        if shape.is_decode:
            # Each has a row of its own in the output of attention, for its zeros.
            padding[begins:draw_slots] = np.arange(shape.num_seqs + 1)
        self._device = upload(padding.copy(), device).clone()
        self.rows = step_rows(self._device, sizes, is_decode=shape.is_decode)
        self._held: list[PlannedRow | None] = []
        self._held_parts: PlanParts | None = None
        self._has_new_blocks = False

    def repeated(self, plan: StepPlan) -> tuple[PlanParts, list[int]] | None:
        """What was filled in last, if the plan comes to the same but for new blocks.

        Returns:
            It, and the rows of the plan that may have new blocks.
        """
        rows, held, parts = plan.rows, self._held, self._held_parts
        if parts is None or len(rows) != len(held) or plan.starts:
            return None
        changed = [index for index, row in enumerate(rows) if row is not held[index]]
        for index in changed:
            row = rows[index]
            slot = parts.rows.slots[index]
            is_sampled = parts.draw_slots[index] == slot
            if row.slot != slot or row.is_sampled != is_sampled or row.token_ids is not None:
                return None
        return parts, changed

    def fill(self, plan: StepPlan, parts: PlanParts, new: list[NewBlocks]) -> None:
        """Sends a plan's rows, unless they are those of the step before."""
        if parts is self._held_parts and not new and not self._has_new_blocks:
            return
        arrays, offsets, num_rows = parts.arrays(new), self._offsets, len(plan.rows)
        # New blocks are the last part, and what is behind them is read by nobody.
        num_sent = offsets[-1] + len(arrays[-1])
        step = staged(num_sent, self._device.device)
        packed = step.numpy()
        packed[:] = self._padding[:num_sent]
        for offset, part in zip(offsets, arrays, strict=True):
            packed[offset : offset + len(part)] = part
        if not self.shape.is_decode:
            packed[offsets[1] + num_rows : offsets[2]] = len(parts.token_ids)
        packed[offsets[5] + num_rows : offsets[6]] = len(arrays[-1])
        self._device[:num_sent].copy_(step, non_blocking=True)
        self._held_parts = parts if parts.is_plain else None
        self._held = list(plan.rows)
        for each in new:
            self._held[each.row] = None  # it grows once
        self._has_new_blocks = bool(new)
