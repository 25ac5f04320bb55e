"""What sequences with the same leading blocks have in common, attended to once for all of them.

Decode, the part before `decode_kernel` (cascade attention: Juravsky et al., "Hydragen", 2024). A
group's queries are the rows of one matrix product with each tile of keys, which are read once
instead of once a sequence. `SharedPrefixes` says which members and keys a unit of work has. A
program leaves what it found, normalised, and the logarithm of its sum in base 2, a row for each
member and query head; `decode_kernel` merges that with the keys that are a sequence's own.
"""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from openinfer_kernels.ops.fused_attention._triton_functions import (
    cache_offsets,
    cache_tile,
    prefetch,
    prepared_halves,
)
from openinfer_kernels.ops.paged_attention._triton_prefill_kernels import softmax_step


@triton.jit
def _attend(
    q, q_second, k_cache_ptr, v_cache_ptr, table_ptr, block, start, end, block_stride, kv_head,
    maximum, total, acc, scale,
    LAYOUT: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # A tile of keys, whose blocks are known; queries and keys are multiplied half by half. The
    # blocks of the next tile are found meanwhile.
    HALF: tl.constexpr = LAYOUT[2] // 2
    keys = start + tl.arange(0, TILE)
    is_key = keys < end
    after = keys + TILE
    offsets = cache_offsets(
        block, keys, block_stride, kv_head, LAYOUT[0], LAYOUT[1] * LAYOUT[2], LAYOUT[2]
    )
    dims = tl.arange(0, HALF)
    k = cache_tile(k_cache_ptr, offsets, is_key, dims, MASKED)
    k_second = cache_tile(k_cache_ptr, offsets, is_key, dims + HALF, MASKED)
    v = cache_tile(v_cache_ptr, offsets, is_key, tl.arange(0, LAYOUT[2]), MASKED)
    block = tl.load(table_ptr + after // LAYOUT[0], mask=after < end, other=0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    scores = tl.dot(q_second, tl.trans(k_second), scores, input_precision=PRECISION)
    maximum, total, acc = softmax_step(
        scores, v, is_key[None, :], maximum, total, acc, scale, MASKED, PRECISION
    )
    return maximum, total, acc, block


@triton.jit(do_not_specialize=["table_stride"])
def shared_prefix_kernel(
    qkv_ptr, q_norm_ptr, cos_sin_ptr, k_cache_ptr, v_cache_ptr, cu_seqlens_q_ptr, seq_lens_ptr,
    block_table_ptr, units_ptr, acc_ptr, lse_ptr,
    block_stride, table_stride, scale, eps,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GROUP_PAD: tl.constexpr, MEMBERS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (unit, part of its members, key head): partial softmaxes of ROWS rows."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    PARTS: tl.constexpr = MEMBERS * GROUP_PAD // ROWS
    LAYOUT: tl.constexpr = (BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    unit = tl.program_id(0) // (NUM_KV_HEADS * PARTS)
    part = tl.program_id(0) // NUM_KV_HEADS % PARTS
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    unit_ptr = units_ptr + unit * (4 + MEMBERS)
    rows = tl.arange(0, ROWS)
    members = (part * ROWS + rows) // GROUP_PAD
    num_members = tl.load(unit_ptr)
    begin = tl.load(unit_ptr + 1)
    end = tl.load(unit_ptr + 2)
    leader = tl.load(unit_ptr + 4).to(tl.int64)
    # Those that are none are 0, a sequence like any other.
    seqs = tl.load(unit_ptr + 4 + members)
    if part * ROWS >= num_members * GROUP_PAD:
        # The next kernel reads what the one before this has written as soon as all programs of
        # this one have ended or said that it may.
        if PDL:
            gdc_wait()
        return
    tokens = tl.load(cu_seqlens_q_ptr + seqs).to(tl.int64)
    positions = tl.maximum(tl.load(seq_lens_ptr + seqs) - 1, 0).to(tl.int64)
    table_ptr = block_table_ptr + leader * table_stride
    if PDL:
        ahead = begin + tl.arange(0, 2 * TILE)
        prefetch(
            k_cache_ptr, v_cache_ptr, table_ptr, ahead, end, block_stride, kv_head,
            BLOCK_SIZE, NUM_KV_HEADS * HEAD_DIM, HEAD_DIM,
        )  # fmt: skip
        gdc_wait()
        # Not before the wait: the next kernel does not wait for what this one has waited for.
        gdc_launch_dependents()

    is_row = (members < num_members) & (rows % GROUP_PAD < GROUP)
    heads = kv_head * GROUP + rows % GROUP_PAD
    source = (tokens * (NUM_HEADS + 2 * NUM_KV_HEADS) + heads) * HEAD_DIM
    dims = tl.arange(0, HEAD_DIM)
    q, q_second = prepared_halves(
        qkv_ptr, source, is_row, q_norm_ptr, cos_sin_ptr, positions, eps, HEAD_DIM, NORM
    )
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    keys = begin + tl.arange(0, TILE)
    block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < end, other=0)
    whole = begin + (end - begin) // TILE * TILE
    for start in range(begin, whole, TILE):
        maximum, total, acc, block = _attend(
            q, q_second, k_cache_ptr, v_cache_ptr, table_ptr, block, start, end, block_stride,
            kv_head, maximum, total, acc, scale, LAYOUT, TILE, False, PRECISION,
        )  # fmt: skip
    if whole < end:
        maximum, total, acc, block = _attend(
            q, q_second, k_cache_ptr, v_cache_ptr, table_ptr, block, whole, end, block_stride,
            kv_head, maximum, total, acc, scale, LAYOUT, TILE, True, PRECISION,
        )  # fmt: skip
    row = (unit.to(tl.int64) * NUM_KV_HEADS + kv_head) * (MEMBERS * GROUP_PAD) + part * ROWS + rows
    tl.store(lse_ptr + row, maximum + tl.log2(total), mask=is_row)
    tl.store(
        acc_ptr + row[:, None] * HEAD_DIM + dims[None, :], acc / total[:, None],
        mask=is_row[:, None],
    )  # fmt: skip
