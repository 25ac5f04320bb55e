"""The controls that change logits before the temperature, with torch's operators."""

from typing import Any

import numpy.typing as npt
import torch

from openinfer_kernels.memory._upload import upload
from openinfer_kernels.ops.sample import (
    IN_PROMPT,
    PADDING,
    Column,
    Indices,
    Needs,
    SampleRows,
    SampleState,
)


def write_row(row: torch.Tensor, ids: Indices, values: npt.NDArray[Any]) -> None:
    """Writes values into one row; see `Sample.write_row`."""
    row.index_copy_(0, upload(ids, row.device), upload(values, row.device))


def floats(table: torch.Tensor, column: Column) -> torch.Tensor:
    """Returns a column of gathered rows that holds floats: [n], float64."""
    return table[:, column].view(torch.float64)


def constrain(logits: torch.Tensor, rows: SampleRows, state: SampleState) -> torch.Tensor:
    """Returns scores [n, vocab_size], float32: `logits` itself if no row has a control.

    Args:
        logits: [n, vocab_size], float32.
        rows: The rows of the step.
        state: The tables.
    """
    if not rows.all_needs & Needs.CONTROLS and rows.masks is None:
        return logits
    scores = logits.clone()
    for need, change in (
        (Needs.BIAS, _add_bias),
        (Needs.PENALTIES, _apply_penalties),
        (Needs.MIN_TOKENS, _mask_early_stops),
        (Needs.BAD_WORDS, _mask_bad_words),
    ):
        index = rows.rows_with(need)
        if len(index) == len(rows.needs):
            change(scores, rows, state)
        elif len(index):
            part, at = rows.select(index)
            changed = scores.index_select(0, at)
            change(changed, part, state)
            scores.index_copy_(0, at, changed)
    if rows.masks is not None:
        _apply_masks(scores, *rows.masks)
    return scores


def count_tokens(token_ids: torch.Tensor, rows: SampleRows, state: SampleState) -> None:
    """Writes drawn tokens into `counts` and `recent` of the rows that need them."""
    index = rows.rows_with(Needs.PENALTIES)
    if len(index):
        part, at = rows.select(index)
        cells = (part.slots, token_ids.index_select(0, at))
        ones = torch.ones(len(index), dtype=torch.int32, device=token_ids.device)
        state.counts.index_put_(cells, ones, accumulate=True)
    index = rows.rows_with(Needs.BAD_WORDS)
    if len(index):
        part, at = rows.select(index)
        cells = (part.slots, part.positions % state.recent.shape[1])
        state.recent.index_put_(cells, token_ids.index_select(0, at).to(torch.int32))


def _apply_masks(scores: torch.Tensor, index: Indices, bits: torch.Tensor) -> None:
    lanes = torch.arange(32, dtype=torch.int32, device=scores.device)
    is_allowed = (bits.unsqueeze(2) >> lanes).bitwise_and_(1).flatten(1)[:, : scores.shape[1]]
    at = upload(index, scores.device)
    scores.index_copy_(0, at, scores.index_select(0, at).masked_fill_(is_allowed == 0, -torch.inf))


def _add_bias(scores: torch.Tensor, rows: SampleRows, state: SampleState) -> None:
    scores += state.bias.index_select(0, rows.slots)


def _apply_penalties(scores: torch.Tensor, rows: SampleRows, state: SampleState) -> None:
    table = state.table.index_select(0, rows.slots)
    repetition, frequency, presence = (
        floats(table, column).to(torch.float32).unsqueeze(1)
        for column in (
            Column.REPETITION_PENALTY,
            Column.FREQUENCY_PENALTY,
            Column.PRESENCE_PENALTY,
        )
    )
    counts = state.counts.index_select(0, rows.slots)
    if scores.device.type != "cpu":
        scores.copy_(_penalized(scores, counts, repetition, frequency, presence))
        return
    # Few ids of a vocabulary have been seen. On a CPU, only those are computed.
    row, token_id = counts.numpy().nonzero()
    cells = torch.from_numpy(row), torch.from_numpy(token_id)
    factors = (factor[cells[0], 0] for factor in (repetition, frequency, presence))
    scores.index_put_(cells, _penalized(scores[cells], counts[cells], *factors))


def _penalized(
    scores: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    num_output = counts & (IN_PROMPT - 1)
    repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(counts != 0, repeated, scores)
    return scores - frequency * num_output - presence * (num_output > 0)


def _mask_early_stops(scores: torch.Tensor, rows: SampleRows, state: SampleState) -> None:
    table = state.table.index_select(0, rows.slots)
    is_early = rows.positions < table[:, Column.FIRST_STOP_POSITION]
    ids = table[:, Column.STOP_IDS :]
    held = scores.gather(1, ids).masked_fill_(is_early.unsqueeze(1), -torch.inf)
    scores.scatter_(1, ids, held)


def _mask_bad_words(scores: torch.Tensor, rows: SampleRows, state: SampleState) -> None:
    words = state.bad_words.index_select(0, rows.slots)  # [n, words, ids]
    length = words.shape[2]
    first = state.table.index_select(0, rows.slots)[:, Column.FIRST_OUTPUT_POSITION]
    back = torch.arange(1 - length, 0, device=scores.device)
    positions = rows.positions.unsqueeze(1) + back  # [n, ids - 1]
    recent = state.recent.index_select(0, rows.slots).gather(1, positions % length)
    # A bad word must begin in the output. PADDING - 1 matches neither an id nor the padding.
    recent = recent.masked_fill_(positions < first.unsqueeze(1), PADDING - 1)
    begun = (words[:, :, :-1] == recent.unsqueeze(1)) | (words[:, :, :-1] == PADDING)
    last = words[:, :, -1].to(torch.int64)
    is_next = begun.all(dim=2) & (last != PADDING)
    # The minimum, so that bad words with the same last id do not undo each other.
    change = torch.full(last.shape, torch.inf, device=scores.device)
    change.masked_fill_(is_next, -torch.inf)
    scores.scatter_reduce_(1, last.clamp_(min=0), change, "amin")
