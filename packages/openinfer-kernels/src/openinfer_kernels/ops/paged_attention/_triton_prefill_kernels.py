"""Attention over the paged cache in Triton, for prefills, decode steps and steps that mix them.

A tile is a few consecutive queries of one sequence times all query heads that share a key head, so
that keys and values are read once for the group. Tiles are numbered over all sequences: tile t
belongs to the last sequence s with cu_seqlens_q[s] // QUERIES + s <= t. A program finds s by
bisection on the device; the host launches as many tiles as any lengths can need. If tiles are too
few to fill the GPU, programs share the keys of a tile, and a second kernel merges their results
(flash-decoding; Dao, 2023).
"""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def load_tile(
    cache_ptr, table_ptr, keys, is_key, block_stride, kv_head, dims,
    BLOCK_SHAPE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Loads a tile of keys or values through the block table: [keys, head_dim].

    If MASKED, positions that are no keys of the sequence are loaded as 0. BLOCK_SHAPE is
    (block_size, num_kv_heads, head_dim).
    """
    BLOCK_SIZE: tl.constexpr = BLOCK_SHAPE[0]
    WIDTH: tl.constexpr = BLOCK_SHAPE[1] * BLOCK_SHAPE[2]
    if MASKED:
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    else:
        block = tl.load(table_ptr + keys // BLOCK_SIZE).to(tl.int64)
    offset = block * block_stride + (keys % BLOCK_SIZE) * WIDTH + kv_head * BLOCK_SHAPE[2]
    ptrs = cache_ptr + offset[:, None] + dims[None, :]
    if MASKED:
        return tl.load(ptrs, mask=is_key[:, None], other=0.0)
    return tl.load(ptrs)


@triton.jit
def attend_tile(
    q, k, v, is_visible, maximum, total, acc, scale, MASKED: tl.constexpr, PRECISION: tl.constexpr
):
    """Takes one step of the online softmax over a tile of keys; see `softmax_step`."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    return softmax_step(scores, v, is_visible, maximum, total, acc, scale, MASKED, PRECISION)


@triton.jit
def softmax_step(
    scores, v, is_visible, maximum, total, acc, scale, MASKED: tl.constexpr, PRECISION: tl.constexpr
):
    """Updates the online softmax with the scores of a tile: q @ k.T, not yet scaled.

    Maxima and exponents are in base 2. If MASKED, `is_visible` says which keys a row attends to. A
    row that has seen no key so far has maximum -inf and total 0.
    """
    log2_scale = scale * 1.4426950408889634
    if MASKED:
        scores = tl.where(is_visible, scores, float("-inf"))
    # The scale is positive, so the largest product belongs to the largest score. Scaling and
    # subtracting the maximum together are one multiply-add.
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
    """Returns the sequence of a tile, by bisection over `cu_seqlens_q`."""
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attends to one tile of queries: program (tile, key head, split).

    Tensors are those of `PagedAttention`; `out_ptr` is [num_tokens, NUM_HEADS, HEAD_DIM]. If
    IS_SPLIT, a program attends to its share of the keys and writes its normalised result to
    `acc_ptr` [num_tokens, NUM_HEADS, num_splits, HEAD_DIM] and the base-2 logarithm of its sum to
    `lse_ptr` [num_tokens, NUM_HEADS, num_splits], both float32; `out_ptr` is not written.

    Tiles run from the last to the first, because the last ones attend to the most keys. Keys up to
    the tile's first query are visible to all its rows and need no mask; the loop over them comes
    first. With PDL, the program waits for the kernel before this one after it has read lengths,
    which older kernels wrote.
    """
    GROUP_SIZE: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    QUERIES: tl.constexpr = BLOCK_M // GROUP_SIZE
    BLOCK_SHAPE: tl.constexpr = (BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq = _sequence_of(tile, cu_seqlens_q_ptr, num_seqs, QUERIES)
    begin = tl.load(cu_seqlens_q_ptr + seq)
    num_queries = tl.load(cu_seqlens_q_ptr + seq + 1) - begin
    first_query = (tile - (begin // QUERIES + seq)) * QUERIES
    if PDL:
        # cu_seqlens_q, read above, was written before the previous kernel was launched.
        gdc_wait()
        gdc_launch_dependents()
    if first_query < num_queries:
        first_position = tl.load(seq_lens_ptr + seq) - num_queries
        rows = tl.arange(0, BLOCK_M)
        dims = tl.arange(0, HEAD_DIM)
        queries = first_query + rows // GROUP_SIZE
        is_row = (queries < num_queries) & (rows < QUERIES * GROUP_SIZE)
        tokens = (begin + queries).to(tl.int64)
        heads = kv_head * GROUP_SIZE + rows % GROUP_SIZE
        q = tl.load(
            q_ptr + (tokens * q_stride + heads * HEAD_DIM)[:, None] + dims[None, :],
            mask=is_row[:, None],
            other=0.0,
        )
        positions = first_position + queries
        maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

        # The tile's last query attends to the most keys.
        num_keys = first_position + tl.minimum(first_query + QUERIES, num_queries)
        first, last = 0, num_keys
        if IS_SPLIT:
            tiles_per_split = tl.cdiv(tl.cdiv(num_keys, BLOCK_N), num_splits)
            first = split * tiles_per_split * BLOCK_N
            last = tl.minimum(first + tiles_per_split * BLOCK_N, num_keys)
        # All rows of the tile attend to the keys up to the first query's own.
        unmasked_end = (first_position + first_query + 1) // BLOCK_N * BLOCK_N
        masked_from = tl.maximum(first, tl.minimum(last, unmasked_end))
        seq_table_ptr = block_table_ptr + seq.to(tl.int64) * table_stride
        for start in range(first, masked_from, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            k = load_tile(
                k_cache_ptr,
                seq_table_ptr,
                keys,
                True,
                block_stride,
                kv_head,
                dims,
                BLOCK_SHAPE,
                False,
            )
            v = load_tile(
                v_cache_ptr,
                seq_table_ptr,
                keys,
                True,
                block_stride,
                kv_head,
                dims,
                BLOCK_SHAPE,
                False,
            )
            maximum, total, acc = attend_tile(
                q, k, v, True, maximum, total, acc, scale, False, PRECISION
            )
        for start in range(masked_from, last, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            is_key = keys < last
            k = load_tile(
                k_cache_ptr,
                seq_table_ptr,
                keys,
                is_key,
                block_stride,
                kv_head,
                dims,
                BLOCK_SHAPE,
                True,
            )
            v = load_tile(
                v_cache_ptr,
                seq_table_ptr,
                keys,
                is_key,
                block_stride,
                kv_head,
                dims,
                BLOCK_SHAPE,
                True,
            )
            is_visible = is_key[None, :] & (keys[None, :] <= positions[:, None])
            maximum, total, acc = attend_tile(
                q, k, v, is_visible, maximum, total, acc, scale, True, PRECISION
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
    """Merges the splits of one row: program (token, query head).

    Reads `acc_ptr` and `lse_ptr` as `prefill_kernel` writes them, at most MAX_SPLITS splits, and
    writes `out_ptr` [num_tokens, NUM_HEADS, HEAD_DIM]. Rows past cu_seqlens_q[-1] are left
    unwritten.
    """
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
