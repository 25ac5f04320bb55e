"""Back end `triton` of advance_rows: one program per sequence, and one for padding tokens."""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from typing import Any

import torch
import triton
import triton.language as tl

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._family import tuned_for
from openinfer_kernels.gpu._support import why_not_triton
from openinfer_kernels.ops.advance_rows import (
    AdvanceRows,
    AdvanceRowsSpec,
    RowTables,
    StepRows,
    StepTensors,
)
from openinfer_kernels.ops.advance_rows._tuning import SIZES, AdvanceSizes


def supports(spec: AdvanceRowsSpec, device: torch.device) -> str | None:
    """Returns None if the kernel runs on this device, else the reason."""
    return why_not_triton(torch.float32, device)


# Views of one array, one after another. Their alignment depends on the shape of the step, and
# specializing on it would compile a kernel for each.
_PACKED = (
    *("slots_ptr", "begins_ptr", "draw_slots_ptr", "start_lens_ptr", "new_columns_ptr"),
    *("new_begins_ptr", "token_ids_ptr", "new_blocks_ptr"),
)
# Arguments that vary between steps; specializing on them would compile more kernels.
_NUMBERS = ("num_tokens", "padding", "max_blocks", "out_stride")


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_PACKED)
def _advance_rows_kernel(
    block_table_ptr, seq_lens_ptr, last_token_ptr,
    slots_ptr, begins_ptr, draw_slots_ptr, start_lens_ptr, new_columns_ptr, new_begins_ptr,
    token_ids_ptr, new_blocks_ptr,
    out_token_ids_ptr, positions_ptr, slot_mapping_ptr, cu_seqlens_q_ptr, out_seq_lens_ptr,
    out_block_table_ptr, logits_indices_ptr, out_draw_slots_ptr, draw_positions_ptr,
    num_tokens, padding, max_blocks, out_stride,
    BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Advances one sequence: program (sequence); the last program writes padding tokens.

    The tables are those of `RowTables`, the next 8 tensors `StepRows`, the last 9 `StepTensors`.
    New blocks are written to the table first, because tokens of this step are mapped to them.
    """
    seq = tl.program_id(0)
    is_row = seq < tl.num_programs(0) - 1
    slot = tl.load(slots_ptr + seq, mask=is_row, other=padding)
    begin = tl.load(begins_ptr + seq)
    end = tl.load(begins_ptr + seq + 1, mask=is_row, other=num_tokens)
    start_len = tl.load(start_lens_ptr + seq, mask=is_row, other=-1)
    first_new = tl.load(new_begins_ptr + seq, mask=is_row, other=0)
    last_new = tl.load(new_begins_ptr + seq + 1, mask=is_row, other=0)
    column = tl.load(new_columns_ptr + seq, mask=is_row, other=0)
    draw_slot = tl.load(draw_slots_ptr + seq, mask=is_row, other=0)
    length = tl.load(seq_lens_ptr + slot)
    length = tl.where(start_len < 0, length, start_len)
    last_token = tl.load(last_token_ptr + slot)
    is_padding = slot == padding
    blocks_ptr = block_table_ptr + slot * max_blocks

    lanes = tl.arange(0, BLOCK_COLUMNS)
    at = first_new
    while at < last_new:
        index = at + lanes
        new = tl.load(new_blocks_ptr + index, mask=index < last_new, other=0)
        cells = blocks_ptr + column + index - first_new
        tl.store(cells, new.to(tl.int32), mask=index < last_new)
        at += BLOCK_COLUMNS
    # Threads of this program read below what others of them have written.
    tl.debug_barrier()

    at = begin
    while at < end:
        tokens = at + tl.arange(0, BLOCK_M)
        is_token = tokens < end
        token_ids = tl.load(token_ids_ptr + tokens, mask=is_token, other=0)
        positions = tl.where(is_padding, 0, length + tokens - begin)
        block = tl.load(blocks_ptr + positions // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)
        slot_mapping = block * BLOCK_SIZE + positions % BLOCK_SIZE
        token_ids = tl.where(token_ids < 0, last_token, token_ids)
        tl.store(out_token_ids_ptr + tokens, token_ids, mask=is_token)
        tl.store(positions_ptr + tokens, positions, mask=is_token)
        tl.store(slot_mapping_ptr + tokens, slot_mapping, mask=is_token)
        at += BLOCK_M

    tl.store(cu_seqlens_q_ptr + seq, begin.to(tl.int32))
    if is_row:
        length += tl.where(is_padding, 0, end - begin)
        tl.store(seq_lens_ptr + slot, length, mask=is_padding == 0)
        tl.store(out_seq_lens_ptr + seq, length.to(tl.int32))
        tl.store(logits_indices_ptr + seq, tl.maximum(end - 1, 0))
        tl.store(out_draw_slots_ptr + seq, draw_slot)
        tl.store(draw_positions_ptr + seq, length)
        num_blocks = (length + BLOCK_SIZE - 1) // BLOCK_SIZE
        out_ptr = out_block_table_ptr + seq.to(tl.int64) * out_stride
        at = tl.full((), 0, tl.int64)
        while at < num_blocks:
            index = at + lanes
            blocks = tl.load(blocks_ptr + index, mask=index < num_blocks, other=0)
            tl.store(out_ptr + index, blocks, mask=index < num_blocks)
            at += BLOCK_COLUMNS


def _constexprs(spec: AdvanceRowsSpec, sizes: AdvanceSizes, *, is_decode: bool) -> dict[str, int]:
    return {
        "BLOCK_SIZE": spec.block_size,
        "BLOCK_M": sizes.decode_tokens if is_decode else sizes.prefill_tokens,
        "BLOCK_COLUMNS": sizes.columns,
    }


def plan(spec: AdvanceRowsSpec, device: torch.device | str) -> AdvanceRows:
    """Binds the kernel to a spec."""
    sizes = tuned_for(SIZES, torch.device(device))
    kernel: Any = _advance_rows_kernel
    options = {each: _constexprs(spec, sizes, is_decode=each) for each in (False, True)}

    def advance_rows(tables: RowTables, rows: StepRows, out: StepTensors) -> None:
        kernel[(len(rows.slots) + 1,)](
            tables.block_table,
            tables.seq_lens,
            tables.last_token,
            rows.slots,
            rows.begins,
            rows.draw_slots,
            rows.start_lens,
            rows.new_columns,
            rows.new_begins,
            rows.token_ids,
            rows.new_blocks,
            out.token_ids,
            out.positions,
            out.slot_mapping,
            out.cu_seqlens_q,
            out.seq_lens,
            out.block_table,
            out.logits_indices,
            out.draw_slots,
            out.draw_positions,
            len(rows.token_ids),
            len(tables.seq_lens) - 1,
            tables.block_table.stride(0),
            out.block_table.stride(0),
            **options[rows.is_decode],
            num_warps=sizes.num_warps,
        )

    return advance_rows


_TABLES = {"block_table_ptr": "*i32", "seq_lens_ptr": "*i64", "last_token_ptr": "*i64"}
_OUT = (
    *("out_token_ids_ptr", "positions_ptr", "slot_mapping_ptr", "logits_indices_ptr"),
    *("out_draw_slots_ptr", "draw_positions_ptr"),
)
_OUT_INT32 = ("cu_seqlens_q_ptr", "out_seq_lens_ptr", "out_block_table_ptr")


def compile_cases() -> list[CompileCase]:
    """Returns the kernel of decode steps and of steps with prefills, for blocks of 16 tokens."""
    sizes = SIZES["default"]
    return [
        CompileCase(
            name=f"advance_rows-{'decode' if is_decode else 'prompts'}",
            kernel=_advance_rows_kernel,
            signature={
                **_TABLES,
                **dict.fromkeys((*_PACKED, *_OUT), "*i64"),
                **dict.fromkeys(_OUT_INT32, "*i32"),
                **dict.fromkeys(_NUMBERS, "i32"),
            },
            constexprs=_constexprs(AdvanceRowsSpec(block_size=16), sizes, is_decode=is_decode),
            num_warps=sizes.num_warps,
        )
        for is_decode in (True, False)
    ]
