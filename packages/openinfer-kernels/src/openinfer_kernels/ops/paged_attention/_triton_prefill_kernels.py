"""Attention of many queries in Triton: what `_triton` takes where a sequence has more than one.

A tile is a few queries of one sequence with all heads that share a key head, so that keys and
values are read once for the group. Tiles are numbered over all sequences: tile t of a step is of
the last sequence s with cu_seqlens_q[s] // QUERIES + s <= t, which a program finds on the device,
and the host launches as many as there can be at most. Where those are too few to fill a device, a
tile's keys are split among programs, and a second kernel merges what they found (Dao, 2023).
"""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def load_tile(
    cache_ptr, slots_ptr, keys, is_key, block_stride, kv_head, dims,
    LAYOUT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys or values through the block table: [keys, head_dim]; all, or those that are keys."""
    # LAYOUT is (block_size, num_kv_heads, head_dim).
    BLOCK_SIZE: tl.constexpr = LAYOUT[0]
    WIDTH: tl.constexpr = LAYOUT[1] * LAYOUT[2]
    if MASKED:
        block = tl.load(slots_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    else:
        block = tl.load(slots_ptr + keys // BLOCK_SIZE).to(tl.int64)
    offset = block * block_stride + (keys % BLOCK_SIZE) * WIDTH + kv_head * LAYOUT[2]
    ptrs = cache_ptr + offset[:, None] + dims[None, :]
    if MASKED:
        return tl.load(ptrs, mask=is_key[:, None], other=0.0)
    return tl.load(ptrs)


@triton.jit
def attend_tile(
    q, k, v, sees, maximum, total, acc, scale, MASKED: tl.constexpr, PRECISION: tl.constexpr
):
    """One step of the online softmax, in base 2. Rows that see no key so far stay empty."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    return softmax_step(scores, v, sees, maximum, total, acc, scale, MASKED, PRECISION)


@triton.jit
def softmax_step(
    scores, v, sees, maximum, total, acc, scale, MASKED: tl.constexpr, PRECISION: tl.constexpr
):
    """What `attend_tile` does with the products of queries and keys."""
    log2_scale = scale * 1.4426950408889634
    if MASKED:
        scores = tl.where(sees, scores, float("-inf"))
    # The scale is positive: the largest product is the largest score, and scaling a product, less
    # the maximum, is one multiply-add.
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1) * log2_scale)
    shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(scores * log2_scale - shift[:, None])
    decay = tl.exp2(maximum - shift)
    total = total * decay + tl.sum(weights, axis=1)
    acc = acc * decay[:, None]
    acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
    return new_maximum, total, acc


@triton.jit
def _sequence_of(tile, cu_seqlens_q_ptr, num_seqs, QUERIES: tl.constexpr):
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(cu_seqlens_q_ptr + middle) // QUERIES + middle
        low = tl.where(first <= tile, middle, low)
        high = tl.where(first <= tile, high, middle)
    return low


@triton.jit(do_not_specialize=["num_seqs", "num_splits", "table_stride"])
def prefill_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    cu_seqlens_q_ptr,
    seq_lens_ptr,
    block_table_ptr,
    out_ptr,
    acc_ptr,
    lse_ptr,
    q_stride,
    block_stride,
    table_stride,
    num_seqs,
    num_splits,
    scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tile, key head, split), the last tiles first: they see furthest."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    QUERIES: tl.constexpr = ROWS // GROUP
    LAYOUT: tl.constexpr = (BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq = _sequence_of(tile, cu_seqlens_q_ptr, num_seqs, QUERIES)
    begin = tl.load(cu_seqlens_q_ptr + seq)
    num_queries = tl.load(cu_seqlens_q_ptr + seq + 1) - begin
    first_query = (tile - (begin // QUERIES + seq)) * QUERIES
    if PDL:
        # What is read before is older kernels' work.
        gdc_wait()
        gdc_launch_dependents()
    if first_query < num_queries:
        first_position = tl.load(seq_lens_ptr + seq) - num_queries
        rows = tl.arange(0, ROWS)
        dims = tl.arange(0, HEAD_DIM)
        queries = first_query + rows // GROUP
        is_row = (queries < num_queries) & (rows < QUERIES * GROUP)
        tokens = (begin + queries).to(tl.int64)
        heads = kv_head * GROUP + rows % GROUP
        q = tl.load(
            q_ptr + (tokens * q_stride + heads * HEAD_DIM)[:, None] + dims[None, :],
            mask=is_row[:, None],
            other=0.0,
        )
        positions = first_position + queries
        maximum = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)

        # The tile's last query is the one that sees furthest.
        visible = first_position + tl.minimum(first_query + QUERIES, num_queries)
        first, last = 0, visible
        if IS_SPLIT:
            tiles_per_split = tl.cdiv(tl.cdiv(visible, TILE), num_splits)
            first = split * tiles_per_split * TILE
            last = tl.minimum(first + tiles_per_split * TILE, visible)
        # Keys up to the first query's own are seen by all.
        seen_by_all = (first_position + first_query + 1) // TILE * TILE
        unmasked = tl.maximum(first, tl.minimum(last, seen_by_all))
        table = block_table_ptr + seq.to(tl.int64) * table_stride
        for start in range(first, unmasked, TILE):
            keys = start + tl.arange(0, TILE)
            k = load_tile(
                k_cache_ptr, table, keys, True, block_stride, kv_head, dims, LAYOUT, False
            )
            v = load_tile(
                v_cache_ptr, table, keys, True, block_stride, kv_head, dims, LAYOUT, False
            )
            maximum, total, acc = attend_tile(
                q, k, v, True, maximum, total, acc, scale, False, PRECISION
            )
        for start in range(unmasked, last, TILE):
            keys = start + tl.arange(0, TILE)
            is_key = keys < last
            k = load_tile(
                k_cache_ptr, table, keys, is_key, block_stride, kv_head, dims, LAYOUT, True
            )
            v = load_tile(
                v_cache_ptr, table, keys, is_key, block_stride, kv_head, dims, LAYOUT, True
            )
            sees = is_key[None, :] & (keys[None, :] <= positions[:, None])
            maximum, total, acc = attend_tile(
                q, k, v, sees, maximum, total, acc, scale, True, PRECISION
            )

        denominator = tl.where(total > 0.0, total, 1.0)
        acc = acc / denominator[:, None]
        out_rows = tokens * NUM_HEADS + heads
        if IS_SPLIT:
            out_rows = out_rows * num_splits + split
            lse = tl.where(total > 0.0, maximum + tl.log2(denominator), float("-inf"))
            tl.store(lse_ptr + out_rows, lse, mask=is_row)
            tl.store(
                acc_ptr + out_rows[:, None] * HEAD_DIM + dims[None, :], acc, mask=is_row[:, None]
            )
        else:
            tl.store(
                out_ptr + out_rows[:, None] * HEAD_DIM + dims[None, :],
                acc.to(out_ptr.dtype.element_ty),
                mask=is_row[:, None],
            )


@triton.jit(do_not_specialize=["num_seqs", "num_splits"])
def merge_splits_kernel(
    acc_ptr,
    lse_ptr,
    cu_seqlens_q_ptr,
    out_ptr,
    num_seqs,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (token, head) merges what the splits of its keys have found."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    if token < tl.load(cu_seqlens_q_ptr + num_seqs):
        row = token * NUM_HEADS + tl.program_id(1)
        splits = tl.arange(0, MAX_SPLITS)
        dims = tl.arange(0, HEAD_DIM)
        is_split = splits < num_splits
        lse = tl.load(lse_ptr + row * num_splits + splits, mask=is_split, other=float("-inf"))
        top = tl.max(lse, axis=0)
        weights = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
        total = tl.sum(weights, axis=0)
        acc = tl.load(
            acc_ptr + (row * num_splits + splits)[:, None] * HEAD_DIM + dims[None, :],
            mask=is_split[:, None],
            other=0.0,
        )
        out = tl.sum(acc * weights[:, None], axis=0) / tl.where(total > 0.0, total, 1.0)
        tl.store(out_ptr + row * HEAD_DIM + dims, out.to(out_ptr.dtype.element_ty))
