"""The definition of advance_rows: sequence by sequence and token by token."""

import torch

from openinfer_kernels.ops.advance_rows import (
    AdvanceRows,
    AdvanceRowsSpec,
    RowTables,
    StepRows,
    StepTensors,
)


def plan(spec: AdvanceRowsSpec, device: torch.device | str) -> AdvanceRows:
    """Binds the definition to a spec."""
    block_size = spec.block_size

    def advance_rows(tables: RowTables, rows: StepRows, out: StepTensors) -> None:
        padding = len(tables.seq_lens) - 1
        begins = rows.begins.tolist()
        ends = [*begins[1:], len(rows.token_ids)]
        for seq, slot in enumerate([*rows.slots.tolist(), padding]):
            is_row = seq < len(rows.slots)
            blocks = tables.block_table[slot]
            length = int(tables.seq_lens[slot])
            if is_row:
                if rows.start_lens[seq] >= 0:
                    length = int(rows.start_lens[seq])
                new = rows.new_blocks[int(rows.new_begins[seq]) : int(rows.new_begins[seq + 1])]
                column = int(rows.new_columns[seq])
                blocks[column : column + len(new)] = new
            begin, end = begins[seq], ends[seq]
            for token in range(begin, end):
                token_id = int(rows.token_ids[token])
                out.token_ids[token] = token_id if token_id >= 0 else tables.last_token[slot]
                position = 0 if slot == padding else length + token - begin
                out.positions[token] = position
                block = int(blocks[position // block_size])
                out.slot_mapping[token] = block * block_size + position % block_size
            out.cu_seqlens_q[seq] = begin
            if is_row:
                length += 0 if slot == padding else end - begin
                tables.seq_lens[slot] = length
                out.seq_lens[seq] = length
                out.block_table[seq] = blocks
                out.logits_indices[seq] = max(0, end - 1)
                out.draw_slots[seq] = rows.draw_slots[seq]
                out.draw_positions[seq] = length

    return advance_rows
