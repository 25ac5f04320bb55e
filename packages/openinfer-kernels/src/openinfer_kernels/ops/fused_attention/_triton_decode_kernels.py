"""The kernel of a decode step: from a token's projections to the outputs of its heads.

A program has one unit of work and one key head. A unit is a chunk of one sequence's keys, or all of
them if they are few. The chunk length follows from the sum of all lengths, so that units fill the
grid: long sequences among short ones are split into more chunks. All of this is computed on the
device, from the lengths alone.

A program normalises and rotates the queries of its group itself. The program of a sequence's last
chunk also prepares the new key, writes it and the new value to the cache, and attends to them from
registers; no other program reads them. Scores, maxima and sums are float32, exponents have base 2
(Dao, 2023). The program that finishes a sequence's key head last merges its chunks in their order,
so that results do not depend on which program that is.
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
    head_norm_weights,
    head_pair,
    normed_and_rotated,
    pick,
    prefetch,
    rotation,
    softmax_step,
)


@triton.jit
def _merge(
    acc_ptr, lse_ptr, head_out_ptr, first, num_chunks, kv_head,
    NUM_KV_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr, MERGED_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Merges the chunks of one sequence and key head and writes the outputs of its query heads.

    `acc_ptr` and `lse_ptr` are [units, NUM_KV_HEADS, GROUP_SIZE, HEAD_DIM], float32; the chunks are
    units first .. first + num_chunks. MERGED_CHUNKS of them are loaded at a time, so that their
    loads overlap. Each element carries its head's logarithm, so that nothing moves between threads.
    The loads bypass the L1 cache: other multiprocessors wrote the values.
    """
    heads = tl.arange(0, GROUP_PAD)[:, None]
    dims = tl.arange(0, HEAD_DIM)[None, :]
    top = tl.full([GROUP_PAD, HEAD_DIM], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD, HEAD_DIM], tl.float32)
    out = tl.zeros([GROUP_PAD, HEAD_DIM], tl.float32)
    for start in range(0, num_chunks, MERGED_CHUNKS):
        new_top = top
        partials = ()
        for i in tl.static_range(MERGED_CHUNKS):
            chunk = start + i
            mask = (chunk < num_chunks) & (heads < GROUP_SIZE) & (dims < HEAD_DIM)
            at = ((first + chunk) * NUM_KV_HEADS + kv_head) * GROUP_SIZE + heads
            at = at * HEAD_DIM + dims
            lse = tl.load(lse_ptr + at, mask=mask, other=float("-inf"), cache_modifier=".cg")
            acc = tl.load(acc_ptr + at, mask=mask, other=0.0, cache_modifier=".cg")
            partials = partials + ((lse, acc),)  # type: ignore[assignment]  # noqa: RUF005
        for i in tl.static_range(MERGED_CHUNKS):
            new_top = tl.maximum(new_top, partials[i][0])
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay = tl.exp2(top - shift)
        total = total * decay
        out = out * decay
        for i in tl.static_range(MERGED_CHUNKS):
            weight = tl.exp2(partials[i][0] - shift)
            total += weight
            out += partials[i][1] * weight
        top = new_top
    out = out / tl.where(total > 0.0, total, 1.0)
    dtype = head_out_ptr.dtype.element_ty
    tl.store(head_out_ptr + heads * HEAD_DIM + dims, out.to(dtype), mask=heads < GROUP_SIZE)


@triton.jit
def _merge_shared(
    maximum, total, acc, shared_place, step, num_chunks, kv_head, acc_ptr, lse_ptr,
    NUM_KV_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, UNIT_MEMBERS: tl.constexpr,
):  # fmt: skip
    """Merges the results of `shared_prefix_kernel` into the softmax of a sequence's own keys.

    The results are those at `shared_place` and every `step` units after it. They are merged four at
    a time, so that their loads overlap.
    """
    unit = shared_place // UNIT_MEMBERS
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    offsets = rows[:, None] * HEAD_DIM + dims[None, :]
    is_row = rows < GROUP_SIZE
    first = shared_place % UNIT_MEMBERS * GROUP_PAD
    for chunk in range(0, num_chunks, 4):
        at_0 = ((unit + chunk * step).to(tl.int64) * NUM_KV_HEADS + kv_head) * (
            UNIT_MEMBERS * GROUP_PAD
        )
        at_0 += first
        stride = step.to(tl.int64) * (NUM_KV_HEADS * UNIT_MEMBERS * GROUP_PAD)
        has_1 = is_row & (chunk + 1 < num_chunks)
        has_2 = is_row & (chunk + 2 < num_chunks)
        has_3 = is_row & (chunk + 3 < num_chunks)
        at_1 = at_0 + stride
        at_2 = at_1 + stride
        at_3 = at_2 + stride
        lse_0, acc_0 = _partial(acc_ptr, lse_ptr, at_0, rows, offsets, is_row, HEAD_DIM)
        lse_1, acc_1 = _partial(acc_ptr, lse_ptr, at_1, rows, offsets, has_1, HEAD_DIM)
        lse_2, acc_2 = _partial(acc_ptr, lse_ptr, at_2, rows, offsets, has_2, HEAD_DIM)
        lse_3, acc_3 = _partial(acc_ptr, lse_ptr, at_3, rows, offsets, has_3, HEAD_DIM)
        top = tl.maximum(tl.maximum(lse_0, lse_1), tl.maximum(lse_2, lse_3))
        top = tl.maximum(maximum, top)
        shift = tl.where(top == float("-inf"), 0.0, top)
        decay = tl.exp2(maximum - shift)
        weight_0 = tl.exp2(lse_0 - shift)
        weight_1 = tl.exp2(lse_1 - shift)
        weight_2 = tl.exp2(lse_2 - shift)
        weight_3 = tl.exp2(lse_3 - shift)
        total = total * decay + ((weight_0 + weight_1) + (weight_2 + weight_3))
        acc = acc * decay[:, None] + acc_0 * weight_0[:, None]
        acc += acc_1 * weight_1[:, None]
        acc += acc_2 * weight_2[:, None]
        acc += acc_3 * weight_3[:, None]
        maximum = top
    return maximum, total, acc


@triton.jit
def _partial(acc_ptr, lse_ptr, at, rows, offsets, mask, HEAD_DIM: tl.constexpr):
    """Loads one partial result of BLOCK_M rows: its logarithms and its values."""
    lse = tl.load(lse_ptr + at + rows, mask=mask, other=float("-inf"), cache_modifier=".cg")
    acc = tl.load(
        acc_ptr + at * HEAD_DIM + offsets, mask=mask[:, None], other=0.0, cache_modifier=".cg"
    )
    return lse, acc


@triton.jit(do_not_specialize=["num_seqs", "target_units", "table_stride"])
def decode_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_sin_ptr, slot_mapping_ptr,
    k_cache_ptr, v_cache_ptr, cu_seqlens_q_ptr, seq_lens_ptr, block_table_ptr,
    out_ptr, acc_ptr, lse_ptr, count_ptr,
    shared_rows_ptr, shared_acc_ptr, shared_lse_ptr,
    block_stride, table_stride, num_seqs, target_units, scale, eps,
    NUM_SEQS_PAD: tl.constexpr, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    GROUP_PAD: tl.constexpr, BLOCK_N: tl.constexpr, WHOLE_TILES: tl.constexpr,
    MERGED_CHUNKS: tl.constexpr, HAS_NORM: tl.constexpr, PDL: tl.constexpr,
    PRECISION: tl.constexpr, IS_SHARED: tl.constexpr, UNIT_MEMBERS: tl.constexpr,
    LAUNCH_LATE: tl.constexpr,
):  # fmt: skip
    """Attends with one token of each sequence: program (unit, key head).

    Tensors are those of `FusedAttention` and `AttentionStep`: `qkv_ptr` [num_tokens, NUM_HEADS + 2
    * NUM_KV_HEADS, HEAD_DIM], `out_ptr` [num_tokens, NUM_HEADS, HEAD_DIM]. `acc_ptr` and `lse_ptr`
    are [units, NUM_KV_HEADS, GROUP_SIZE, HEAD_DIM] in float32, for sequences of several chunks.
    `count_ptr` [MAX_SEQS, NUM_KV_HEADS] counts finished chunks; it is 0 before and after. The
    `shared_` tensors are `SharedPrefixes.rows` and what `shared_prefix_kernel` wrote, if IS_SHARED.

    Rows of the products are the group's query heads, then the new key; the rest is padding. With
    PDL, all that older kernels wrote (lengths, block table, cached keys) is loaded before the
    program waits for the kernel that computes `qkv_ptr`.
    """
    if PDL and not LAUNCH_LATE:
        gdc_launch_dependents()
    GROUP_SIZE: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    WIDTH: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    unit = tl.program_id(0) // NUM_KV_HEADS
    kv_head = tl.program_id(0) % NUM_KV_HEADS

    # Find this unit's sequence and chunk. The lengths were written before the previous kernel was
    # launched, so there is no need to wait for it.
    seqs = tl.arange(0, NUM_SEQS_PAD)
    lens = tl.load(seq_lens_ptr + seqs, mask=seqs < num_seqs, other=0)
    if IS_SHARED:
        # Counts a sequence's own keys only; `shared_prefix_kernel` attends to the shared ones.
        lens -= tl.load(shared_rows_ptr + seqs * 4, mask=seqs < num_seqs, other=0)
    tiles = tl.cdiv(lens, BLOCK_N)
    chunk = tl.maximum(tl.cdiv(tl.sum(tiles, axis=0), target_units), 1) * BLOCK_N
    counts = tl.where(tiles > WHOLE_TILES, tl.cdiv(lens, chunk), 1)
    counts = tl.where(seqs < num_seqs, counts, 0)
    ends = tl.cumsum(counts, axis=0)
    seq = tl.sum((ends <= unit).to(tl.int32), axis=0)
    if seq >= num_seqs:
        return
    num_chunks = pick(counts, seqs, seq)
    first_unit = pick(ends, seqs, seq) - num_chunks
    shared_len = 0
    if IS_SHARED:
        shared_len = tl.load(shared_rows_ptr + seq * 4)
        shared_place = tl.load(shared_rows_ptr + seq * 4 + 1)
        shared_unit_step = tl.load(shared_rows_ptr + seq * 4 + 2)
        num_shared_units = tl.load(shared_rows_ptr + seq * 4 + 3)
    seq_len = pick(lens, seqs, seq) + shared_len
    num_older = seq_len - 1  # keys that are in the cache already
    begin = shared_len + (unit - first_unit) * chunk
    end = tl.where(num_chunks > 1, tl.minimum(begin + chunk, num_older), num_older)
    is_last = unit == first_unit + num_chunks - 1

    # The first tile of keys and values is older too, so it is loaded before the wait: into
    # registers, or into the L2 cache if merging a shared prefix needs the registers.
    keys = begin + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    table_ptr = block_table_ptr + seq.to(tl.int64) * table_stride
    block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < end, other=0)
    if not IS_SHARED:
        offsets = cache_offsets(block, keys, block_stride, kv_head, BLOCK_SIZE, WIDTH, HEAD_DIM)
        k = cache_tile(k_cache_ptr, offsets, keys < end, dims)
        v = cache_tile(v_cache_ptr, offsets, keys < end, dims)
    elif PDL:
        ahead = begin + tl.arange(0, 2 * BLOCK_N)
        prefetch(
            k_cache_ptr, v_cache_ptr, table_ptr, ahead, end, block_stride, kv_head,
            BLOCK_SIZE, WIDTH, HEAD_DIM,
        )  # fmt: skip
    token = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    # A padding sequence may have no token: its index lies past the others' tokens.
    has_token = tl.load(cu_seqlens_q_ptr + seq + 1) > token
    slot = tl.load(slot_mapping_ptr + token, mask=has_token, other=0)
    # Rows are the group's query heads, then the new key. Cosines and norm weights are loaded in the
    # layout of the rows, so that nothing moves between threads.
    rows = tl.arange(0, BLOCK_M)
    is_row = (rows < GROUP_SIZE) & has_token
    is_new = (rows == GROUP_SIZE) & has_token
    heads = tl.where(rows < GROUP_SIZE, kv_head * GROUP_SIZE + rows, NUM_HEADS + kv_head)
    # A decode step's token is its sequence's last.
    positions = tl.maximum(num_older, 0).to(tl.int64) + tl.zeros([BLOCK_M], tl.int64)
    cos, sin = rotation(cos_sin_ptr, positions, dims, HEAD_DIM)
    norm, norm_partner = head_norm_weights(
        q_norm_ptr, k_norm_ptr, is_row, is_new, dims, HEAD_DIM, HAS_NORM
    )
    if PDL and not IS_SHARED:
        # With IS_SHARED, `shared_prefix_kernel` has waited for the projections already.
        gdc_wait()

    row_ptr = qkv_ptr + token * ((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    q, partner = head_pair(row_ptr, heads * HEAD_DIM, is_row | is_new, dims, HEAD_DIM)
    v_ptr = row_ptr + (NUM_HEADS + NUM_KV_HEADS + kv_head) * HEAD_DIM
    new_v = tl.load(v_ptr + dims, mask=(dims < HEAD_DIM) & has_token, other=0.0)
    if PDL and LAUNCH_LATE:
        # Lets the next kernel load its weights while this one computes. Earlier, they would compete
        # for bandwidth with the weights that the previous kernel still reads.
        gdc_launch_dependents()
    q = normed_and_rotated(q, partner, norm, norm_partner, cos, sin, dims, eps, HEAD_DIM, HAS_NORM)
    target = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * WIDTH
    target += kv_head * HEAD_DIM
    k_targets = k_cache_ptr + target + dims[None, :] + rows[:, None] * 0
    tl.store(k_targets, q, mask=(is_new & is_last)[:, None] & (dims < HEAD_DIM)[None, :])
    tl.store(v_cache_ptr + target + dims, new_v, mask=(dims < HEAD_DIM) & is_last & has_token)

    # The softmax of the last chunk begins with the new token. `total` has a column for each key of
    # a tile; the columns are summed after the last tile.
    log2_scale = scale * 1.4426950408889634
    has_new = is_last & (seq_len > 0)
    own = tl.dot(q, tl.trans(q), input_precision=PRECISION) * log2_scale
    maximum = tl.max(tl.where((rows == GROUP_SIZE)[None, :] & has_new, own, float("-inf")), axis=1)
    total = tl.where((tl.arange(0, BLOCK_N) == 0) & has_new, 1.0, 0.0)[None, :]
    total += tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    acc = tl.where(has_new, new_v.to(tl.float32), 0.0)[None, :]
    acc += tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    if not IS_SHARED:
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        maximum, total, acc = softmax_step(
            scores, v, keys < end, maximum, total, acc, log2_scale, PRECISION
        )
        begin += BLOCK_N
        keys += BLOCK_N
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < end, other=0)
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        offsets = cache_offsets(block, keys, block_stride, kv_head, BLOCK_SIZE, WIDTH, HEAD_DIM)
        k = cache_tile(k_cache_ptr, offsets, keys < end, dims)
        v = cache_tile(v_cache_ptr, offsets, keys < end, dims)
        # Looks up the next tile's blocks now, so that its copies need not wait for them.
        after = keys + BLOCK_N
        block = tl.load(table_ptr + after // BLOCK_SIZE, mask=after < end, other=0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        maximum, total, acc = softmax_step(
            scores, v, keys < end, maximum, total, acc, log2_scale, PRECISION
        )
    total = tl.sum(total, axis=1)

    if IS_SHARED:
        if PDL:
            gdc_wait()
        # The shared results are merged into the first of the sequence's own chunks.
        if unit == first_unit:
            maximum, total, acc = _merge_shared(
                maximum, total, acc, shared_place, shared_unit_step, num_shared_units, kv_head,
                shared_acc_ptr, shared_lse_ptr, NUM_KV_HEADS, GROUP_SIZE, GROUP_PAD, HEAD_DIM,
                BLOCK_M, UNIT_MEMBERS,
            )  # fmt: skip

    denominator = tl.where(total > 0.0, total, 1.0)
    acc = acc / denominator[:, None]
    head_out_ptr = out_ptr + (token * NUM_HEADS + kv_head * GROUP_SIZE) * HEAD_DIM
    out_offsets = rows[:, None].to(tl.int64) * HEAD_DIM + dims[None, :]
    if num_chunks == 1:
        tl.store(head_out_ptr + out_offsets, acc.to(out_ptr.dtype.element_ty), mask=is_row[:, None])
    else:
        mine = tl.program_id(0).to(tl.int64)
        lse = tl.where(total > 0.0, maximum + tl.log2(denominator), float("-inf"))
        lse = lse[:, None] + tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
        out_offsets += mine * (GROUP_SIZE * HEAD_DIM)
        tl.store(lse_ptr + out_offsets, lse, mask=(rows < GROUP_SIZE)[:, None])
        tl.store(acc_ptr + out_offsets, acc, mask=(rows < GROUP_SIZE)[:, None])
        tl.debug_barrier()
        count_ptr += seq * NUM_KV_HEADS + kv_head
        arrived = tl.atomic_add(count_ptr, 1, sem="acq_rel")
        if arrived == num_chunks - 1:
            _merge(
                acc_ptr, lse_ptr, head_out_ptr, first_unit, num_chunks, kv_head,
                NUM_KV_HEADS, GROUP_SIZE, GROUP_PAD, HEAD_DIM, MERGED_CHUNKS,
            )  # fmt: skip
            tl.store(count_ptr, 0)
