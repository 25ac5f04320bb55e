"""The kernels of fused_attention: all of a decode step, and what stands before a prefill.

Decode: from a token's projections to its heads' outputs. Program (unit, key head), where a unit is
a chunk of one sequence's keys, or all of them if they are few. Chunks are as long as the sum of all
lengths makes them, so that units are as many as the grid has room for: long sequences among short
ones are split more often, with nothing but the lengths and on the device. A program normalises and
rotates the queries of its group itself. The program of a sequence's last chunk does the same with
the new key, writes it and the new value to the cache, and attends to them where it has them; nobody
else reads them. Scores, maxima and sums are float32 in base 2 (Dao, 2023).

The program that finishes a sequence's head last merges its chunks, in their order.
"""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from openinfer_kernels.ops.fused_attention._triton_functions import (
    accumulate,
    cache_offsets,
    cache_tile,
    head_norms,
    head_pair,
    norm_weights,
    pick,
    prefetch,
    prepared,
    rotation,
)


@triton.jit
def _merge(
    acc_ptr, lse_ptr, target_ptr, first, num_chunks, kv_head,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    # Chunks first .. first + num_chunks of one sequence and key head, CHUNKS at a time, each a
    # tensor [heads of the group, dimensions]: all loads of them are under way at once, and nothing
    # has to move between threads: each element has its head's logarithm, maximum and sum.
    heads = tl.arange(0, GROUP_PAD)[:, None]
    dims = tl.arange(0, HEAD_DIM)[None, :]
    top = tl.full([GROUP_PAD, HEAD_DIM], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD, HEAD_DIM], tl.float32)
    out = tl.zeros([GROUP_PAD, HEAD_DIM], tl.float32)
    for start in range(0, num_chunks, CHUNKS):
        new_top = top
        partials = ()
        for i in tl.static_range(CHUNKS):
            chunk = start + i
            mask = (chunk < num_chunks) & (heads < GROUP) & (dims < HEAD_DIM)
            at = ((first + chunk) * NUM_KV_HEADS + kv_head) * GROUP + heads
            at = at * HEAD_DIM + dims
            lse = tl.load(lse_ptr + at, mask=mask, other=float("-inf"), cache_modifier=".cg")
            acc = tl.load(acc_ptr + at, mask=mask, other=0.0, cache_modifier=".cg")
            partials = partials + ((lse, acc),)  # type: ignore[assignment]  # noqa: RUF005
        for i in tl.static_range(CHUNKS):
            new_top = tl.maximum(new_top, partials[i][0])
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay = tl.exp2(top - shift)
        total = total * decay
        out = out * decay
        for i in tl.static_range(CHUNKS):
            weight = tl.exp2(partials[i][0] - shift)
            total += weight
            out += partials[i][1] * weight
        top = new_top
    out = out / tl.where(total > 0.0, total, 1.0)
    dtype = target_ptr.dtype.element_ty
    tl.store(target_ptr + heads * HEAD_DIM + dims, out.to(dtype), mask=heads < GROUP)


@triton.jit
def _with_shared(
    maximum, total, acc, place, step, num_chunks, kv_head, acc_ptr, lse_ptr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    # A softmax of a sequence's own keys becomes one of all: what `shared_prefix_kernel` found at
    # `place`, and `step` units on, is merged into it; four at a time, so that loads overlap.
    unit = place // MEMBERS
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    offsets = rows[:, None] * HEAD_DIM + dims[None, :]
    is_row = rows < GROUP
    first = place % MEMBERS * GROUP_PAD
    for chunk in range(0, num_chunks, 4):
        at_0 = ((unit + chunk * step).to(tl.int64) * NUM_KV_HEADS + kv_head) * (MEMBERS * GROUP_PAD)
        at_0 += first
        stride = step.to(tl.int64) * (NUM_KV_HEADS * MEMBERS * GROUP_PAD)
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
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr,
    GROUP_PAD: tl.constexpr, TILE: tl.constexpr, WHOLE: tl.constexpr, CHUNKS: tl.constexpr,
    NORM: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr, SHARED: tl.constexpr,
    MEMBERS: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    if PDL and not LATE:
        gdc_launch_dependents()
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    WIDTH: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    unit = tl.program_id(0) // NUM_KV_HEADS
    kv_head = tl.program_id(0) % NUM_KV_HEADS

    # Which sequence and chunk: lengths are settled long before the kernel in front of this one.
    seqs = tl.arange(0, NUM_SEQS_PAD)
    lens = tl.load(seq_lens_ptr + seqs, mask=seqs < num_seqs, other=0)
    if SHARED:
        # Keys of its own; the others are the group's.
        lens -= tl.load(shared_rows_ptr + seqs * 4, mask=seqs < num_seqs, other=0)
    tiles = tl.cdiv(lens, TILE)
    chunk = tl.maximum(tl.cdiv(tl.sum(tiles, axis=0), target_units), 1) * TILE
    counts = tl.where(tiles > WHOLE, tl.cdiv(lens, chunk), 1)
    counts = tl.where(seqs < num_seqs, counts, 0)
    ends = tl.cumsum(counts, axis=0)
    seq = tl.sum((ends <= unit).to(tl.int32), axis=0)
    if seq >= num_seqs:
        return
    num_chunks = pick(counts, seqs, seq)
    first_unit = pick(ends, seqs, seq) - num_chunks
    shared_len = 0
    if SHARED:
        shared_len = tl.load(shared_rows_ptr + seq * 4)
        place = tl.load(shared_rows_ptr + seq * 4 + 1)
        place_step = tl.load(shared_rows_ptr + seq * 4 + 2)
        num_places = tl.load(shared_rows_ptr + seq * 4 + 3)
    seq_len = pick(lens, seqs, seq) + shared_len
    num_older = seq_len - 1  # keys that are in the cache
    begin = shared_len + (unit - first_unit) * chunk
    end = tl.where(num_chunks > 1, tl.minimum(begin + chunk, num_older), num_older)
    is_last = unit == first_unit + num_chunks - 1

    # What is read before the wait is older kernels' work. The first keys are too: they wait in
    # registers, or in the cache where merging with what is shared needs those.
    keys = begin + tl.arange(0, TILE)
    dims = tl.arange(0, HEAD_DIM)
    table_ptr = block_table_ptr + seq.to(tl.int64) * table_stride
    block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < end, other=0)
    if not SHARED:
        offsets = cache_offsets(block, keys, block_stride, kv_head, BLOCK_SIZE, WIDTH, HEAD_DIM)
        k = cache_tile(k_cache_ptr, offsets, keys < end, dims)
        v = cache_tile(v_cache_ptr, offsets, keys < end, dims)
    elif PDL:
        ahead = begin + tl.arange(0, 2 * TILE)
        prefetch(
            k_cache_ptr, v_cache_ptr, table_ptr, ahead, end, block_stride, kv_head,
            BLOCK_SIZE, WIDTH, HEAD_DIM,
        )  # fmt: skip
    token = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    # A padding sequence may own no row: its token lies past the others.
    owns_row = tl.load(cu_seqlens_q_ptr + seq + 1) > token
    slot = tl.load(slot_mapping_ptr + token, mask=owns_row, other=0)
    # Rows are the group's query heads, then the new key. All that rows are prepared with is loaded
    # as they are, so that nothing has to move between threads.
    rows = tl.arange(0, ROWS)
    is_row = (rows < GROUP) & owns_row
    is_new = (rows == GROUP) & owns_row
    heads = tl.where(rows < GROUP, kv_head * GROUP + rows, NUM_HEADS + kv_head)
    # A decode step's token is its sequence's last.
    positions = tl.maximum(num_older, 0).to(tl.int64) + tl.zeros([ROWS], tl.int64)
    cos, sin = rotation(cos_sin_ptr, positions, dims, HEAD_DIM)
    norm, norm_partner = head_norms(q_norm_ptr, k_norm_ptr, is_row, is_new, dims, HEAD_DIM, NORM)
    if PDL and not SHARED:
        # With SHARED the kernel in front has waited for this one, too.
        gdc_wait()

    row_ptr = qkv_ptr + token * ((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    q, partner = head_pair(row_ptr, heads * HEAD_DIM, is_row | is_new, dims, HEAD_DIM)
    v_ptr = row_ptr + (NUM_HEADS + NUM_KV_HEADS + kv_head) * HEAD_DIM
    new_v = tl.load(v_ptr + dims, mask=(dims < HEAD_DIM) & owns_row, other=0.0)
    if PDL and LATE:
        # The next kernel's weights are on their way while this one computes, not before: they would
        # come instead of those that the kernel in front still waits for.
        gdc_launch_dependents()
    q = prepared(q, partner, norm, norm_partner, cos, sin, dims, eps, HEAD_DIM, NORM)
    target = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * WIDTH
    target += kv_head * HEAD_DIM
    k_targets = k_cache_ptr + target + dims[None, :] + rows[:, None] * 0
    tl.store(k_targets, q, mask=(is_new & is_last)[:, None] & (dims < HEAD_DIM)[None, :])
    tl.store(v_cache_ptr + target + dims, new_v, mask=(dims < HEAD_DIM) & is_last & owns_row)

    # The softmax begins with the new token, in the chunk that it belongs to. Totals are summed up
    # behind the last tile.
    log2_scale = scale * 1.4426950408889634
    has_new = is_last & (seq_len > 0)
    own = tl.dot(q, tl.trans(q), input_precision=PRECISION) * log2_scale
    maximum = tl.max(tl.where((rows == GROUP)[None, :] & has_new, own, float("-inf")), axis=1)
    total = tl.where((tl.arange(0, TILE) == 0) & has_new, 1.0, 0.0)[None, :]
    total += tl.zeros([ROWS, TILE], tl.float32)
    acc = tl.where(has_new, new_v.to(tl.float32), 0.0)[None, :]
    acc += tl.zeros([ROWS, HEAD_DIM], tl.float32)
    if not SHARED:
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        maximum, total, acc = accumulate(
            scores, v, keys < end, maximum, total, acc, log2_scale, PRECISION
        )
        begin += TILE
        keys += TILE
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < end, other=0)
    for start in range(begin, end, TILE):
        keys = start + tl.arange(0, TILE)
        offsets = cache_offsets(block, keys, block_stride, kv_head, BLOCK_SIZE, WIDTH, HEAD_DIM)
        k = cache_tile(k_cache_ptr, offsets, keys < end, dims)
        v = cache_tile(v_cache_ptr, offsets, keys < end, dims)
        # A tile's blocks are found one tile before, so that its copies need not wait for them.
        after = keys + TILE
        block = tl.load(table_ptr + after // BLOCK_SIZE, mask=after < end, other=0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        maximum, total, acc = accumulate(
            scores, v, keys < end, maximum, total, acc, log2_scale, PRECISION
        )
    total = tl.sum(total, axis=1)

    if SHARED:
        if PDL:
            gdc_wait()
        # All of that is merged with the first of a sequence's own chunks.
        if unit == first_unit:
            maximum, total, acc = _with_shared(
                maximum, total, acc, place, place_step, num_places, kv_head, shared_acc_ptr,
                shared_lse_ptr, NUM_KV_HEADS, GROUP, GROUP_PAD, HEAD_DIM, ROWS, MEMBERS,
            )  # fmt: skip

    denominator = tl.where(total > 0.0, total, 1.0)
    acc = acc / denominator[:, None]
    target_ptr = out_ptr + (token * NUM_HEADS + kv_head * GROUP) * HEAD_DIM
    places = rows[:, None].to(tl.int64) * HEAD_DIM + dims[None, :]
    if num_chunks == 1:
        tl.store(target_ptr + places, acc.to(out_ptr.dtype.element_ty), mask=is_row[:, None])
    else:
        mine = tl.program_id(0).to(tl.int64)
        lse = tl.where(total > 0.0, maximum + tl.log2(denominator), float("-inf"))
        lse = lse[:, None] + tl.zeros([ROWS, HEAD_DIM], tl.float32)
        places += mine * (GROUP * HEAD_DIM)
        tl.store(lse_ptr + places, lse, mask=(rows < GROUP)[:, None])
        tl.store(acc_ptr + places, acc, mask=(rows < GROUP)[:, None])
        tl.debug_barrier()
        count_ptr += seq * NUM_KV_HEADS + kv_head
        arrived = tl.atomic_add(count_ptr, 1, sem="acq_rel")
        if arrived == num_chunks - 1:
            _merge(
                acc_ptr, lse_ptr, target_ptr, first_unit, num_chunks, kv_head,
                NUM_KV_HEADS, GROUP, GROUP_PAD, HEAD_DIM, CHUNKS,
            )  # fmt: skip
            tl.store(count_ptr, 0)


@triton.jit(do_not_specialize=["num_tokens"])
def prepare_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_sin_ptr, positions_ptr, slot_mapping_ptr,
    q_out_ptr, k_cache_ptr, v_cache_ptr, block_stride, num_tokens, eps,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (head, tokens): queries to a tensor of their own, keys and values to the cache."""
    if PDL:
        gdc_launch_dependents()
    head = tl.program_id(0)
    tokens = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    is_token = tokens < num_tokens
    dims = tl.arange(0, HEAD_DIM)
    is_query = head < NUM_HEADS
    if is_query:
        target = (tokens * NUM_HEADS + head)[:, None] * HEAD_DIM
    else:
        kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
        slot = tl.load(slot_mapping_ptr + tokens, mask=is_token, other=0)
        row = (slot % BLOCK_SIZE) * (NUM_KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
        target = ((slot // BLOCK_SIZE) * block_stride + row)[:, None]
    source = (tokens * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM
    targets = target + dims[None, :]
    if head < NUM_HEADS + NUM_KV_HEADS:
        position = tl.load(positions_ptr + tokens, mask=is_token, other=0)
        cos, sin = rotation(cos_sin_ptr, position, dims, HEAD_DIM)
        norm_ptr = q_norm_ptr
        if NORM:
            norm_ptr = q_norm_ptr if is_query else k_norm_ptr
        norm, norm_partner = norm_weights(norm_ptr, dims, HEAD_DIM, NORM)
        if PDL:
            gdc_wait()
        x, partner = head_pair(qkv_ptr, source, is_token, dims, HEAD_DIM)
        x = prepared(x, partner, norm, norm_partner, cos, sin, dims, eps, HEAD_DIM, NORM)
        if is_query:
            tl.store(q_out_ptr + targets, x, mask=is_token[:, None])
        else:
            tl.store(k_cache_ptr + targets, x, mask=is_token[:, None])
    else:
        if PDL:
            gdc_wait()
        value = tl.load(
            qkv_ptr + source[:, None] + dims[None, :], mask=is_token[:, None], other=0.0
        )
        tl.store(v_cache_ptr + targets, value, mask=is_token[:, None])
