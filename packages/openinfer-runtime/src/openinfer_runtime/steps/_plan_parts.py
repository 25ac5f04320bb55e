"""What a plan says of its rows, as the numbers that go to the device."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from openinfer_kernels import StepRows
from openinfer_scheduler import PlannedRow

Indices = npt.NDArray[np.int64]
Blocks = npt.NDArray[np.int32]

UNKNOWN = -1
"""In place of a token that only the device knows, and of a length that does not start anew."""


class HostRows(NamedTuple):
    """What the host knows of a plan's rows.

    Attributes:
        slots: by row of the plan.
        sampled_rows: [num_sampled]: rows of the plan that are sampled.
        sampled_slots: [num_sampled]: their slots.
        chunk_starts: by row of the plan, first position forwarded. Of a static step that goes on
            as the one before, where that began.
        token_starts: by row of the plan, where its tokens begin in the step; one more at the end.
    """

    slots: Indices
    sampled_rows: Indices
    sampled_slots: Indices
    chunk_starts: Indices
    token_starts: Indices


class PlanParts(NamedTuple):
    """What `StepRows` has of a plan, on the host, but for new blocks."""

    rows: HostRows
    draw_slots: Indices
    start_lens: Indices
    token_ids: Indices
    is_plain: bool
    """Whether nobody starts, and the device alone knows the tokens."""

    def arrays(self, new: list["NewBlocks"]) -> tuple[Indices, ...]:
        """All parts, in the order of `part_sizes`."""
        columns, begins, blocks = _placed(new, len(self.rows.slots))
        return (
            *(self.rows.slots, self.rows.token_starts, self.draw_slots, self.start_lens),
            *(columns, begins, self.token_ids, blocks),
        )


class NewBlocks(NamedTuple):
    """Blocks that a row of the plan gets, and their place in its row of the block table."""

    row: int
    column: int
    blocks: Blocks


def part_sizes(num_seqs: int, num_tokens: int, num_blocks: int) -> list[int]:
    """Numbers of each part of `StepRows`."""
    seqs = num_seqs
    return [seqs, seqs + 1, seqs, seqs, seqs, seqs + 1, num_tokens, num_blocks]


def step_rows(packed: torch.Tensor, sizes: list[int], *, is_decode: bool) -> StepRows:
    """Views of an array that holds the parts one after another."""
    parts = packed.split_with_sizes(sizes)
    slots, begins, draw_slots, start_lens, new_columns, new_begins, token_ids, new_blocks = parts
    return StepRows(
        slots=slots,
        begins=begins,
        draw_slots=draw_slots,
        start_lens=start_lens,
        new_columns=new_columns,
        new_begins=new_begins,
        token_ids=token_ids,
        new_blocks=new_blocks,
        is_decode=is_decode,
    )


def num_blocks(new: list[NewBlocks]) -> int:
    """How many there are in all."""
    return sum(len(each.blocks) for each in new)


def _placed(new: list[NewBlocks], num_rows: int) -> tuple[Indices, Indices, Indices]:
    """Columns by row; where each row's blocks begin, and their total; all blocks."""
    columns, begins = np.zeros(num_rows, np.int64), np.zeros(num_rows + 1, np.int64)
    if not new:
        return columns, begins, begins[:0]
    for row, column, blocks in new:
        columns[row], begins[row + 1] = column, len(blocks)
    np.cumsum(begins, out=begins)
    return columns, begins, np.concatenate([each.blocks for each in new]).astype(np.int64)


def known_tokens(rows: tuple[PlannedRow, ...], begins: Indices) -> Indices | None:
    """The step's tokens, -1 where only the device knows one; None if it alone knows all."""
    known = [index for index, row in enumerate(rows) if row.token_ids is not None]
    if not known:
        return None
    token_ids = np.full(begins[-1], UNKNOWN, np.int64)
    for index in known:
        token_ids[begins[index] : begins[index + 1]] = rows[index].token_ids
    return token_ids
