"""Attention of long prefills on Hopper, in Gluon: loads, products and softmax overlap.

A tile is 128 rows: a few queries of one sequence times all query heads that share a key head. One
warp (the producer) copies keys and values with TMA, block by block, into two stages of shared
memory, where a tile lies as if the cache were contiguous. Two warpgroups (the consumers) compute 64
rows each and take turns: while one multiplies, the other computes its softmax. Within a warpgroup,
the product of weights and values overlaps the softmax of the next tile (FlashAttention-3; Shah et
al., 2024). Keys are taken from the last tile to the first, so that the tiles that need a mask come
first.

Tiles are numbered over all sequences as in `_triton_prefill_kernels`. They run from the last to the
first, because the last ones attend to the most keys.
"""

# Kernel arguments are Gluon's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from openinfer_kernels.ops.paged_attention._tuning import GLUON_PREFILL

BLOCK_M = GLUON_PREFILL["hopper"].block_m
BLOCK_N = GLUON_PREFILL["hopper"].block_n
HEAD_DIM = 128
# Half a head of 16-bit numbers: 128 bytes, one swizzled row of shared memory.
BLOCK_COLUMNS = 64
BLOCK_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)

_ROWS = gl.constexpr(BLOCK_M // 2)
_KEYS = gl.constexpr(BLOCK_N)
_DIMS = gl.constexpr(HEAD_DIM)
_COLUMNS = gl.constexpr(BLOCK_COLUMNS)
_STAGES = gl.constexpr(2)
_TILE_BYTES = gl.constexpr(BLOCK_N * HEAD_DIM * 2)
_TILE_LAYOUT = gl.constexpr(
    gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
)
_MMA = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
)
_WEIGHTS = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=_MMA.value, k_width=2))
# Rows of queries and of the output, 16 bytes per thread.
_COALESCED = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
_BLOCK_REGISTERS = gl.constexpr(gl.BlockedLayout([1, 1, 8], [1, 4, 8], [1, 4, 1], [2, 1, 0]))


@gluon.jit
def _sequence_of(tile, cu_seqlens_q_ptr, num_seqs, QUERIES: gl.constexpr):
    """Returns the sequence of a tile, by bisection over `cu_seqlens_q`."""
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        first = gl.load(cu_seqlens_q_ptr + middle) // QUERIES + middle
        low = gl.where(first <= tile, middle, low)
        high = gl.where(first <= tile, high, middle)
    return low


@gluon.jit
def _load_tile(cache, blocks, kv_head, into, step):
    """Waits until a stage is empty, then starts to copy the blocks of a tile into it."""
    COUNT: gl.constexpr = len(blocks)
    blocks_smem, _, is_empty, is_full = into
    stage = step % _STAGES
    phase = (step // _STAGES) & 1
    mbarrier.wait(is_empty.index(stage), phase ^ 1)
    mbarrier.expect(is_full.index(stage), _TILE_BYTES)
    for half in gl.static_range(_DIMS // _COLUMNS):
        column = kv_head * _DIMS + half * _COLUMNS
        for i in gl.static_range(COUNT):
            at = blocks_smem.index((stage * (_DIMS // _COLUMNS) + half) * COUNT + i)
            tma.async_copy_global_to_shared(cache, [blocks[i], 0, column], is_full.index(stage), at)


@gluon.jit
def _load_keys_and_values(
    k_cache, v_cache, k, v, table_ptr, num_tiles, num_blocks, kv_head, BLOCK_SIZE: gl.constexpr
):
    """Runs the producer warp: copies all tiles of keys and values, from the last to the first."""
    COUNT: gl.constexpr = _KEYS // BLOCK_SIZE
    for step in range(num_tiles):
        first = (num_tiles - 1 - step) * COUNT
        blocks = ()
        for i in gl.static_range(COUNT):
            is_block = first + i < num_blocks
            block = gl.load(table_ptr + gl.where(is_block, first + i, 0))
            # TMA fills boxes outside of the cache with zeros.
            block = gl.where(is_block, block, -1)
            blocks = blocks + (block,)  # type: ignore[assignment]  # noqa: RUF005
        _load_tile(k_cache, blocks, kv_head, k, step)
        _load_tile(v_cache, blocks, kv_head, v, step)


@gluon.jit
def _start_scores(q, k, step, turn, WARPGROUP: gl.constexpr):
    """Starts q @ k.T for a tile, once it is loaded and it is this warpgroup's turn."""
    tiles, is_full = k[1], k[3]
    mbarrier.wait(is_full.index(step % _STAGES), (step // _STAGES) & 1)
    # The second warpgroup's n-th turn comes after the first one's n-th. At its first turn the first
    # warpgroup waits for the phase before the barrier's initial one, which counts as completed.
    mbarrier.wait(turn.index(WARPGROUP), (step + 1 + WARPGROUP) & 1)
    scores = gl.zeros([_ROWS, _KEYS], gl.float32, _MMA)
    keys = tiles.index(step % _STAGES).permute((1, 0))
    return warpgroup_mma(q, keys, scores, use_acc=False, is_async=True)


@gluon.jit
def _start_values(weights, v, step, acc):
    """Starts acc + weights @ v for a tile, once its values are loaded."""
    tiles, is_full = v[1], v[3]
    mbarrier.wait(is_full.index(step % _STAGES), (step // _STAGES) & 1)
    return warpgroup_mma(weights, tiles.index(step % _STAGES), acc, is_async=True)


@gluon.jit
def _softmax_step(scores, state, first_key, rows, MASKED: gl.constexpr):
    """Updates the online softmax with the scores of a tile; maxima and exponents are in base 2.

    If MASKED, keys after a row's position, and keys from `num_keys` on, score -inf. A row that has
    seen no key so far has maximum -inf and total 0.
    """
    maximum, total = state
    log2_scale, positions, num_keys = rows
    if MASKED:
        keys = first_key + gl.arange(0, _KEYS, gl.SliceLayout(0, _MMA))
        is_visible = (keys[None, :] <= positions[:, None]) & (keys < num_keys)[None, :]
        scores = gl.where(is_visible, scores, float("-inf"))
    new_maximum = gl.maximum(maximum, gl.max(scores, axis=1) * log2_scale)
    shift = new_maximum
    if MASKED:
        shift = gl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = gl.exp2(scores * log2_scale - shift[:, None])
    decay = gl.exp2(maximum - shift)
    return weights, (new_maximum, total * decay + gl.sum(weights, axis=1)), decay


@gluon.jit
def _attend_tile(
    step, num_tiles, q, k, v, turn, weights, acc, state, rows,
    WARPGROUP: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Computes the softmax of one tile while the values of the tile before are multiplied."""
    scores = _start_scores(q, k, step, turn, WARPGROUP)
    acc = _start_values(weights, v, step - 1, acc)
    mbarrier.arrive(turn.index(1 - WARPGROUP), count=1)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(k[2].index(step % _STAGES), count=1)
    first_key = (num_tiles - 1 - step) * _KEYS
    new_weights, state, decay = _softmax_step(scores, state, first_key, rows, MASKED)
    acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
    mbarrier.arrive(v[2].index((step - 1) % _STAGES), count=1)
    acc = acc * decay[:, None]
    return gl.convert_layout(new_weights.to(q.dtype), _WEIGHTS), acc, state


@gluon.jit
def _zero_after_last_key(v, num_keys, BLOCK_SIZE: gl.constexpr):
    """Sets the values after the tile's last visible key to 0: they may be NaN, and 0 * NaN is NaN.

    They lie in the first stage. Both warpgroups do this before they multiply, and write the same.
    """
    COUNT: gl.constexpr = _KEYS // BLOCK_SIZE
    mbarrier.wait(v[3].index(0), 0)
    keys = gl.arange(0, BLOCK_SIZE, gl.SliceLayout(0, gl.SliceLayout(2, _BLOCK_REGISTERS)))
    is_key = gl.expand_dims(gl.expand_dims(keys < num_keys % BLOCK_SIZE, 0), 2)
    for half in gl.static_range(_DIMS // _COLUMNS):
        block = v[0].index(half * COUNT + num_keys // BLOCK_SIZE % COUNT)
        block.store(gl.where(is_key, block.load(_BLOCK_REGISTERS), 0.0))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _compute(
    q_ptr, out_ptr, q, k, v, turn, tile, kv_head, q_stride, log2_scale, NUM_HEADS: gl.constexpr,
    GROUP_SIZE: gl.constexpr, BLOCK_SIZE: gl.constexpr, WARPGROUP: gl.constexpr,
):  # fmt: skip
    """Runs one of the two consumer warpgroups: its half of the tile's rows."""
    begin, first_query, num_queries, first_position, num_keys, num_tiles = tile
    rows = gl.arange(0, _ROWS, gl.SliceLayout(1, _COALESCED))
    dims = gl.arange(0, _DIMS, gl.SliceLayout(0, _COALESCED))
    first = first_query + WARPGROUP * (_ROWS // GROUP_SIZE)
    is_row = (first + rows // GROUP_SIZE < num_queries)[:, None]
    tokens = (begin + first + rows // GROUP_SIZE).to(gl.int64)
    heads = kv_head * GROUP_SIZE + rows % GROUP_SIZE
    q_ptrs = q_ptr + (tokens * q_stride + heads * _DIMS)[:, None] + dims[None, :]
    q.store(gl.load(q_ptrs, mask=is_row, other=0.0))
    fence_async_shared()
    gl.thread_barrier()

    positions = first_position + first + gl.arange(0, _ROWS, gl.SliceLayout(1, _MMA)) // GROUP_SIZE
    softmax_rows = (log2_scale, positions, num_keys)
    maximum = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, _MMA))
    total = gl.zeros([_ROWS], gl.float32, gl.SliceLayout(1, _MMA))
    scores = _start_scores(q, k, 0, turn, WARPGROUP)
    mbarrier.arrive(turn.index(1 - WARPGROUP), count=1)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(k[2].index(0), count=1)
    first_key = (num_tiles - 1) * _KEYS
    weights, state, _ = _softmax_step(scores, (maximum, total), first_key, softmax_rows, True)
    weights = gl.convert_layout(weights.to(q.dtype), _WEIGHTS)
    if num_keys % BLOCK_SIZE > 0:
        _zero_after_last_key(v, num_keys, BLOCK_SIZE)

    # All rows of the tile attend to the keys up to the first query's own.
    num_unmasked = gl.maximum(first_position + first_query + 1, 0) // _KEYS
    unmasked = gl.maximum(num_tiles - num_unmasked, 1)
    acc = gl.zeros([_ROWS, _DIMS], gl.float32, _MMA)
    for step in range(1, unmasked):
        weights, acc, state = _attend_tile(
            step, num_tiles, q, k, v, turn, weights, acc, state, softmax_rows, WARPGROUP, True
        )
    for step in range(unmasked, num_tiles):
        weights, acc, state = _attend_tile(
            step, num_tiles, q, k, v, turn, weights, acc, state, softmax_rows, WARPGROUP, False
        )
    acc = _start_values(weights, v, num_tiles - 1, acc)
    acc = warpgroup_mma_wait(0, deps=[acc])
    total = state[1]
    acc = acc / gl.where(total > 0.0, total, 1.0)[:, None]
    # Goes through the shared memory of the queries, so that rows are stored 16 bytes per thread.
    gl.thread_barrier()
    q.store(acc.to(q.dtype))
    gl.thread_barrier()
    out_ptrs = out_ptr + ((tokens * NUM_HEADS + heads) * _DIMS)[:, None] + dims[None, :]
    gl.store(out_ptrs, q.load(_COALESCED), mask=is_row)


@gluon.jit
def _allocate_stages(cache, BLOCK_SIZE: gl.constexpr):
    """Allocates shared memory for tiles of keys or values.

    Returns it as blocks, as the copies fill it, and as tiles, as products read it; then a barrier
    for each stage that says that it is empty, and one that says that it is full.
    """
    HALVES: gl.constexpr = _DIMS // _COLUMNS
    count: gl.constexpr = _STAGES * HALVES * (_KEYS // BLOCK_SIZE)
    shape: gl.constexpr = [count, 1, BLOCK_SIZE, _COLUMNS]
    blocks = gl.allocate_shared_memory(cache.dtype, shape, cache.layout)
    # A tile holds the first halves of all its heads, then the second halves, as its layout asks.
    tiles = blocks._reinterpret(cache.dtype, [_STAGES, _KEYS, _DIMS], _TILE_LAYOUT)
    is_empty = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    is_full = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_STAGES):
        mbarrier.init(is_empty.index(i), count=2)
        mbarrier.init(is_full.index(i), count=1)
    return blocks, tiles, is_empty, is_full


@gluon.jit(do_not_specialize=["num_seqs", "table_stride"])
def prefill_kernel(
    q_ptr,
    k_cache,
    v_cache,
    cu_seqlens_q_ptr,
    seq_lens_ptr,
    block_table_ptr,
    out_ptr,
    q_stride,
    table_stride,
    num_seqs,
    scale,
    NUM_HEADS: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    PDL: gl.constexpr,
):
    """Attends to one tile of queries: program (key head, tile).

    Tensors are those of `PagedAttention`; `out_ptr` is [num_tokens, NUM_HEADS, HEAD_DIM].
    `k_cache` and `v_cache` are TMA descriptors of [num_blocks, BLOCK_SIZE, num_kv_heads * HEAD_DIM]
    with boxes of [1, BLOCK_SIZE, BLOCK_COLUMNS] in `BLOCK_LAYOUT`.
    """
    GROUP_SIZE: gl.constexpr = NUM_HEADS // NUM_KV_HEADS
    QUERIES: gl.constexpr = 2 * _ROWS // GROUP_SIZE
    kv_head = gl.program_id(0)
    tile = gl.num_programs(1) - 1 - gl.program_id(1)
    seq = _sequence_of(tile, cu_seqlens_q_ptr, num_seqs, QUERIES)
    begin = gl.load(cu_seqlens_q_ptr + seq)
    num_queries = gl.load(cu_seqlens_q_ptr + seq + 1) - begin
    first_query = (tile - (begin // QUERIES + seq)) * QUERIES
    if PDL:
        # cu_seqlens_q, read above, was written before the previous kernel was launched.
        gdc_wait()
        gdc_launch_dependents()
    if first_query < num_queries:
        first_position = gl.load(seq_lens_ptr + seq) - num_queries
        # The tile's last query attends to the most keys. Padding may attend to none.
        num_keys = first_position + gl.minimum(first_query + QUERIES, num_queries)
        num_tiles = gl.maximum((num_keys + _KEYS - 1) // _KEYS, 1)
        num_blocks = (num_keys + BLOCK_SIZE - 1) // BLOCK_SIZE
        table_ptr = block_table_ptr + seq.to(gl.int64) * table_stride
        k = _allocate_stages(k_cache, BLOCK_SIZE)
        v = _allocate_stages(v_cache, BLOCK_SIZE)
        q = gl.allocate_shared_memory(k_cache.dtype, [2, _ROWS, _DIMS], _TILE_LAYOUT)
        turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        mbarrier.init(turn.index(0), count=1)
        mbarrier.init(turn.index(1), count=1)
        log2_scale = scale * 1.4426950408889634
        work = (begin, first_query, num_queries, first_position, num_keys, num_tiles)
        gl.warp_specialize(
            [
                (_compute, (
                    q_ptr, out_ptr, q.index(0), k, v, turn, work, kv_head, q_stride, log2_scale,
                    NUM_HEADS, GROUP_SIZE, BLOCK_SIZE, 0,
                )),
                (_compute, (
                    q_ptr, out_ptr, q.index(1), k, v, turn, work, kv_head, q_stride, log2_scale,
                    NUM_HEADS, GROUP_SIZE, BLOCK_SIZE, 1,
                )),
                (_load_keys_and_values, (
                    k_cache, v_cache, k, v, table_ptr, num_tiles, num_blocks, kv_head, BLOCK_SIZE,
                )),
            ],
            # Warps and registers per thread of the second consumer and of the producer. A consumer
            # keeps scores, weights and sums in registers.
            [4, 1],
            [232, 40],
        )  # fmt: skip
