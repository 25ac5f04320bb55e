"""advance_rows with torch's operators, for any device, without reading values on the host."""

import torch

from openinfer_kernels.ops.advance_rows import (
    AdvanceRows,
    AdvanceRowsSpec,
    RowTables,
    StepRows,
    StepTensors,
)


def plan(spec: AdvanceRowsSpec, device: torch.device | str) -> AdvanceRows:
    """Binds the operators to a spec."""
    block_size = spec.block_size

    def advance_rows(tables: RowTables, rows: StepRows, out: StepTensors) -> None:
        table, padding = tables.block_table, len(tables.seq_lens) - 1
        slots, is_padding = rows.slots, rows.slots == padding
        known = tables.seq_lens.index_select(0, slots)
        lens = torch.where(rows.start_lens < 0, known, rows.start_lens)
        if len(rows.new_blocks):
            _write_blocks(table, rows, padding)

        row_of, token_slots, offsets = _rows_of_tokens(rows, padding)
        before = lens if row_of is None else torch.cat((lens, lens.new_zeros(1)))[row_of]
        positions = (before + offsets).masked_fill_(token_slots == padding, 0)
        last = tables.last_token.index_select(0, token_slots)
        column = torch.div(positions, block_size, rounding_mode="floor")
        cells = column.add_(token_slots, alpha=table.shape[1])
        block = table.view(-1).index_select(0, cells)
        torch.where(rows.token_ids < 0, last, rows.token_ids, out=out.token_ids)
        out.positions.copy_(positions)
        torch.add(positions % block_size, block, alpha=block_size, out=out.slot_mapping)

        lens = lens + (rows.begins[1:] - rows.begins[:-1]).masked_fill_(is_padding, 0)
        tables.seq_lens.index_copy_(0, slots, lens)
        out.cu_seqlens_q.copy_(rows.begins)
        out.seq_lens.copy_(lens)
        torch.index_select(table, 0, slots, out=out.block_table)
        torch.clamp(rows.begins[1:] - 1, min=0, out=out.logits_indices)
        out.draw_slots.copy_(rows.draw_slots)
        out.draw_positions.copy_(lens)

    return advance_rows


def _rows_of_tokens(
    rows: StepRows, padding: int
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | int]:
    """Returns the sequence, the slot and the offset in the sequence of each token.

    The sequence of padding is one past the last. In a decode step, token i belongs to sequence i,
    and None is returned for the sequences.
    """
    if rows.is_decode:
        return None, rows.slots, 0
    tokens = torch.arange(len(rows.token_ids), device=rows.slots.device)
    row_of = torch.searchsorted(rows.begins[1:], tokens, right=True)
    token_slots = torch.cat((rows.slots, rows.slots.new_full((1,), padding)))[row_of]
    return row_of, token_slots, tokens - rows.begins[row_of]


def _write_blocks(table: torch.Tensor, rows: StepRows, padding: int) -> None:
    """Writes new blocks into the table."""
    index = torch.arange(len(rows.new_blocks), device=table.device)
    row_of = torch.searchsorted(rows.new_begins[1:], index, right=True)
    # Entries after the last sequence's rewrite the padding slot's block with its own value.
    first = rows.slots * table.shape[1] + rows.new_columns - rows.new_begins[:-1]
    none = first.new_full((1,), padding * table.shape[1])
    is_new = row_of < len(rows.slots)
    cells = torch.cat((first, none))[row_of] + index.masked_fill(~is_new, 0)
    blocks = torch.where(is_new, rows.new_blocks, table[padding, 0])
    table.view(-1).index_copy_(0, cells, blocks.to(torch.int32))
