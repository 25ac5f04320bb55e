"""Attention of a decode step to prefixes that sequences share (cascade attention).

It runs before `decode_kernel` (Juravsky et al., "Hydragen", 2024). The queries of a group's members
are rows of one matrix product with each tile of keys, so keys are read once per group, not per
sequence. `SharedPrefixes` lists the members and keys of each unit of work. A program writes a
normalised result and the base-2 logarithm of its sum for each member and query head;
`decode_kernel` merges them with the sequence's own keys.
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
    normed_and_rotated_halves,
    prefetch,
)
from openinfer_kernels.ops.paged_attention._triton_prefill_kernels import softmax_step


@triton.jit
def _attend_tile(
    q, q_second, k_cache_ptr, v_cache_ptr, table_ptr, block, start, end, block_stride, kv_head,
    maximum, total, acc, scale,
    BLOCK_SHAPE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attends to a tile of keys whose blocks are known, and looks up the blocks of the next tile.

    Queries and keys are multiplied half by half, because the queries' halves are separate tensors.
    """
    HALF: tl.constexpr = BLOCK_SHAPE[2] // 2
    keys = start + tl.arange(0, BLOCK_N)
    is_key = keys < end
    after = keys + BLOCK_N
    offsets = cache_offsets(
        block,
        keys,
        block_stride,
        kv_head,
        BLOCK_SHAPE[0],
        BLOCK_SHAPE[1] * BLOCK_SHAPE[2],
        BLOCK_SHAPE[2],
    )
    dims = tl.arange(0, HALF)
    k = cache_tile(k_cache_ptr, offsets, is_key, dims, MASKED)
    k_second = cache_tile(k_cache_ptr, offsets, is_key, dims + HALF, MASKED)
    v = cache_tile(v_cache_ptr, offsets, is_key, tl.arange(0, BLOCK_SHAPE[2]), MASKED)
    block = tl.load(table_ptr + after // BLOCK_SHAPE[0], mask=after < end, other=0)
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
    BLOCK_SIZE: tl.constexpr, GROUP_PAD: tl.constexpr, UNIT_MEMBERS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_NORM: tl.constexpr, PDL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Attends with BLOCK_M rows of a unit's members: program (unit, part of its members, key head).

    `units_ptr` is `SharedPrefixes.units`; the other inputs are those of `decode_kernel`. Rows are
    members times GROUP_PAD query heads. `acc_ptr` [units, NUM_KV_HEADS, UNIT_MEMBERS * GROUP_PAD,
    HEAD_DIM] and `lse_ptr`, without the last dimension, are float32; rows of padding are not
    written.
    """
    GROUP_SIZE: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    NUM_PARTS: tl.constexpr = UNIT_MEMBERS * GROUP_PAD // BLOCK_M
    BLOCK_SHAPE: tl.constexpr = (BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    unit = tl.program_id(0) // (NUM_KV_HEADS * NUM_PARTS)
    part = tl.program_id(0) // NUM_KV_HEADS % NUM_PARTS
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    unit_ptr = units_ptr + unit * (4 + UNIT_MEMBERS)
    rows = tl.arange(0, BLOCK_M)
    members = (part * BLOCK_M + rows) // GROUP_PAD
    num_members = tl.load(unit_ptr)
    begin = tl.load(unit_ptr + 1)
    end = tl.load(unit_ptr + 2)
    leader = tl.load(unit_ptr + 4).to(tl.int64)
    # Unused members are 0, a sequence that exists, so loads of its row are valid.
    seqs = tl.load(unit_ptr + 4 + members)
    if part * BLOCK_M >= num_members * GROUP_PAD:
        # The next kernel reads what the previous kernel wrote, and waits for this one only. So this
        # program must not end before the previous kernel has.
        if PDL:
            gdc_wait()
        return
    tokens = tl.load(cu_seqlens_q_ptr + seqs).to(tl.int64)
    positions = tl.maximum(tl.load(seq_lens_ptr + seqs) - 1, 0).to(tl.int64)
    table_ptr = block_table_ptr + leader * table_stride
    if PDL:
        ahead = begin + tl.arange(0, 2 * BLOCK_N)
        prefetch(
            k_cache_ptr, v_cache_ptr, table_ptr, ahead, end, block_stride, kv_head,
            BLOCK_SIZE, NUM_KV_HEADS * HEAD_DIM, HEAD_DIM,
        )  # fmt: skip
        gdc_wait()
        # Only after the wait: the next kernel does not wait for the kernel before this one.
        gdc_launch_dependents()

    is_row = (members < num_members) & (rows % GROUP_PAD < GROUP_SIZE)
    heads = kv_head * GROUP_SIZE + rows % GROUP_PAD
    source = (tokens * (NUM_HEADS + 2 * NUM_KV_HEADS) + heads) * HEAD_DIM
    dims = tl.arange(0, HEAD_DIM)
    q, q_second = normed_and_rotated_halves(
        qkv_ptr, source, is_row, q_norm_ptr, cos_sin_ptr, positions, eps, HEAD_DIM, HAS_NORM
    )
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    keys = begin + tl.arange(0, BLOCK_N)
    block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < end, other=0)
    whole = begin + (end - begin) // BLOCK_N * BLOCK_N
    for start in range(begin, whole, BLOCK_N):
        maximum, total, acc, block = _attend_tile(
            q, q_second, k_cache_ptr, v_cache_ptr, table_ptr, block, start, end, block_stride,
            kv_head, maximum, total, acc, scale, BLOCK_SHAPE, BLOCK_N, False, PRECISION,
        )  # fmt: skip
    if whole < end:
        maximum, total, acc, block = _attend_tile(
            q, q_second, k_cache_ptr, v_cache_ptr, table_ptr, block, whole, end, block_stride,
            kv_head, maximum, total, acc, scale, BLOCK_SHAPE, BLOCK_N, True, PRECISION,
        )  # fmt: skip
    row = (
        (unit.to(tl.int64) * NUM_KV_HEADS + kv_head) * (UNIT_MEMBERS * GROUP_PAD)
        + part * BLOCK_M
        + rows
    )
    tl.store(lse_ptr + row, maximum + tl.log2(total), mask=is_row)
    tl.store(
        acc_ptr + row[:, None] * HEAD_DIM + dims[None, :], acc / total[:, None],
        mask=is_row[:, None],
    )  # fmt: skip
