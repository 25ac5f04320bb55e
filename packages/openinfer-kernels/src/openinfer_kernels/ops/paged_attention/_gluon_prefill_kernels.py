"""Attention of many queries on Hopper, in Gluon: copies, products and softmax side by side.

A program is a tile of 128 rows: a few queries of one sequence with all heads that share a key head.
One warp copies keys and values, block by block, into two stages of shared memory, where they lie as
if the cache were in one piece. Two warpgroups have 64 rows each. They take turns: while one
multiplies, the other is at its softmax; and of a warpgroup's own two products, scores and weighted
values, the second runs beside the softmax of the first (Shah et al., 2024). Keys are taken from the
last to the first, so that what needs a mask comes first.

Tiles are numbered over all sequences as in `_triton_prefill_kernels`; the last ones, which see
furthest, come first.
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

ROWS = 128
"""Queries times heads of a tile."""
TILE_KEYS = 128
HEAD_DIM = 128
# A swizzled row of shared memory: half a head of 16-bit numbers.
BLOCK_COLUMNS = 64
BLOCK_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)

_ROWS = gl.constexpr(ROWS // 2)
_KEYS = gl.constexpr(TILE_KEYS)
_DIMS = gl.constexpr(HEAD_DIM)
_COLUMNS = gl.constexpr(BLOCK_COLUMNS)
_STAGES = gl.constexpr(2)
_TILE_BYTES = gl.constexpr(TILE_KEYS * HEAD_DIM * 2)
_TILE_LAYOUT = gl.constexpr(
    gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
)
_MMA = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
)
_WEIGHTS = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=_MMA.value, k_width=2))
# Rows of queries and of the output, 16 bytes a thread.
_COALESCED = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
_BLOCK_REGISTERS = gl.constexpr(gl.BlockedLayout([1, 1, 8], [1, 4, 8], [1, 4, 1], [2, 1, 0]))


@gluon.jit
def _sequence_of(tile, cu_seqlens_q_ptr, num_seqs, QUERIES: gl.constexpr):
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        first = gl.load(cu_seqlens_q_ptr + middle) // QUERIES + middle
        low = gl.where(first <= tile, middle, low)
        high = gl.where(first <= tile, high, middle)
    return low


@gluon.jit
def _copy_tile(cache, blocks, kv_head, into, step):
    """Waits until the stage is free, then copies the blocks of a tile into it."""
    COUNT: gl.constexpr = len(blocks)
    places, _, is_free, is_there = into
    stage = step % _STAGES
    phase = (step // _STAGES) & 1
    mbarrier.wait(is_free.index(stage), phase ^ 1)
    mbarrier.expect(is_there.index(stage), _TILE_BYTES)
    for half in gl.static_range(_DIMS // _COLUMNS):
        column = kv_head * _DIMS + half * _COLUMNS
        for i in gl.static_range(COUNT):
            at = places.index((stage * (_DIMS // _COLUMNS) + half) * COUNT + i)
            tma.async_copy_global_to_shared(
                cache, [blocks[i], 0, column], is_there.index(stage), at
            )


@gluon.jit
def _copy(
    k_cache, v_cache, k, v, table_ptr, num_tiles, num_blocks, kv_head, BLOCK_SIZE: gl.constexpr
):
    """The copying warp: all tiles, from the last to the first."""
    COUNT: gl.constexpr = _KEYS // BLOCK_SIZE
    for step in range(num_tiles):
        first = (num_tiles - 1 - step) * COUNT
        blocks = ()
        for i in gl.static_range(COUNT):
            is_block = first + i < num_blocks
            block = gl.load(table_ptr + gl.where(is_block, first + i, 0))
            # What lies outside of the cache arrives as zeros.
            block = gl.where(is_block, block, -1)
            blocks = blocks + (block,)  # type: ignore[assignment]  # noqa: RUF005
        _copy_tile(k_cache, blocks, kv_head, k, step)
        _copy_tile(v_cache, blocks, kv_head, v, step)


@gluon.jit
def _scores(q, k, step, turn, WHO: gl.constexpr):
    """Starts to multiply queries with a tile's keys, when it is this warpgroup's turn."""
    tiles, is_there = k[1], k[3]
    mbarrier.wait(is_there.index(step % _STAGES), (step // _STAGES) & 1)
    # Of turns, the second warpgroup's n-th comes after the first one's n-th. Before its first, the
    # first one finds a phase that has not begun, which counts as over.
    mbarrier.wait(turn.index(WHO), (step + 1 + WHO) & 1)
    scores = gl.zeros([_ROWS, _KEYS], gl.float32, _MMA)
    keys = tiles.index(step % _STAGES).permute((1, 0))
    return warpgroup_mma(q, keys, scores, use_acc=False, is_async=True)


@gluon.jit
def _add_values(weights, v, step, acc):
    """Starts to multiply weights with a tile's values."""
    tiles, is_there = v[1], v[3]
    mbarrier.wait(is_there.index(step % _STAGES), (step // _STAGES) & 1)
    return warpgroup_mma(weights, tiles.index(step % _STAGES), acc, is_async=True)


@gluon.jit
def _soften(scores, state, first_key, rows, MASKED: gl.constexpr):
    """One step of the online softmax, in base 2. Rows that see no key so far stay empty."""
    maximum, total = state
    log2_scale, positions, visible = rows
    if MASKED:
        keys = first_key + gl.arange(0, _KEYS, gl.SliceLayout(0, _MMA))
        sees = (keys[None, :] <= positions[:, None]) & (keys < visible)[None, :]
        scores = gl.where(sees, scores, float("-inf"))
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
    WHO: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """The softmax of one tile, beside the weighted values of the tile before."""
    scores = _scores(q, k, step, turn, WHO)
    acc = _add_values(weights, v, step - 1, acc)
    mbarrier.arrive(turn.index(1 - WHO), count=1)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(k[2].index(step % _STAGES), count=1)
    first_key = (num_tiles - 1 - step) * _KEYS
    new_weights, state, decay = _soften(scores, state, first_key, rows, MASKED)
    acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
    mbarrier.arrive(v[2].index((step - 1) % _STAGES), count=1)
    acc = acc * decay[:, None]
    return gl.convert_layout(new_weights.to(q.dtype), _WEIGHTS), acc, state


@gluon.jit
def _clear_tail(v, visible, BLOCK_SIZE: gl.constexpr):
    """Values of the first stage behind the last key: they may be anything, and 0 * NaN is NaN.

    Both warpgroups do it, each before it multiplies: they write the same.
    """
    COUNT: gl.constexpr = _KEYS // BLOCK_SIZE
    mbarrier.wait(v[3].index(0), 0)
    keys = gl.arange(0, BLOCK_SIZE, gl.SliceLayout(0, gl.SliceLayout(2, _BLOCK_REGISTERS)))
    is_key = gl.expand_dims(gl.expand_dims(keys < visible % BLOCK_SIZE, 0), 2)
    for half in gl.static_range(_DIMS // _COLUMNS):
        block = v[0].index(half * COUNT + visible // BLOCK_SIZE % COUNT)
        block.store(gl.where(is_key, block.load(_BLOCK_REGISTERS), 0.0))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _attend(
    q_ptr, out_ptr, q, k, v, turn, tile, kv_head, q_stride, log2_scale, NUM_HEADS: gl.constexpr,
    GROUP: gl.constexpr, BLOCK_SIZE: gl.constexpr, WHO: gl.constexpr,
):  # fmt: skip
    """One of the two warpgroups: its half of the tile's queries."""
    begin, first_query, num_queries, first_position, visible, num_tiles = tile
    rows = gl.arange(0, _ROWS, gl.SliceLayout(1, _COALESCED))
    dims = gl.arange(0, _DIMS, gl.SliceLayout(0, _COALESCED))
    first = first_query + WHO * (_ROWS // GROUP)
    is_row = (first + rows // GROUP < num_queries)[:, None]
    tokens = (begin + first + rows // GROUP).to(gl.int64)
    heads = kv_head * GROUP + rows % GROUP
    q_ptrs = q_ptr + (tokens * q_stride + heads * _DIMS)[:, None] + dims[None, :]
    q.store(gl.load(q_ptrs, mask=is_row, other=0.0))
    fence_async_shared()
    gl.thread_barrier()

    positions = first_position + first + gl.arange(0, _ROWS, gl.SliceLayout(1, _MMA)) // GROUP
    seen = (log2_scale, positions, visible)
    maximum = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, _MMA))
    total = gl.zeros([_ROWS], gl.float32, gl.SliceLayout(1, _MMA))
    scores = _scores(q, k, 0, turn, WHO)
    mbarrier.arrive(turn.index(1 - WHO), count=1)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(k[2].index(0), count=1)
    first_key = (num_tiles - 1) * _KEYS
    weights, state, _ = _soften(scores, (maximum, total), first_key, seen, True)
    weights = gl.convert_layout(weights.to(q.dtype), _WEIGHTS)
    if visible % BLOCK_SIZE > 0:
        _clear_tail(v, visible, BLOCK_SIZE)

    # Keys up to the first query's own are seen by all.
    seen_by_all = gl.maximum(first_position + first_query + 1, 0) // _KEYS
    unmasked = gl.maximum(num_tiles - seen_by_all, 1)
    acc = gl.zeros([_ROWS, _DIMS], gl.float32, _MMA)
    for step in range(1, unmasked):
        weights, acc, state = _attend_tile(
            step, num_tiles, q, k, v, turn, weights, acc, state, seen, WHO, True
        )
    for step in range(unmasked, num_tiles):
        weights, acc, state = _attend_tile(
            step, num_tiles, q, k, v, turn, weights, acc, state, seen, WHO, False
        )
    acc = _add_values(weights, v, num_tiles - 1, acc)
    acc = warpgroup_mma_wait(0, deps=[acc])
    total = state[1]
    acc = acc / gl.where(total > 0.0, total, 1.0)[:, None]
    # The queries' place serves to bring rows together.
    gl.thread_barrier()
    q.store(acc.to(q.dtype))
    gl.thread_barrier()
    out_ptrs = out_ptr + ((tokens * NUM_HEADS + heads) * _DIMS)[:, None] + dims[None, :]
    gl.store(out_ptrs, q.load(_COALESCED), mask=is_row)


@gluon.jit
def _stages(cache, BLOCK_SIZE: gl.constexpr):
    """Shared memory for tiles of keys or values: as blocks, as tiles; a stage is free, is there."""
    HALVES: gl.constexpr = _DIMS // _COLUMNS
    count: gl.constexpr = _STAGES * HALVES * (_KEYS // BLOCK_SIZE)
    shape: gl.constexpr = [count, 1, BLOCK_SIZE, _COLUMNS]
    blocks = gl.allocate_shared_memory(cache.dtype, shape, cache.layout)
    # First halves of all heads, then second ones: as a tile of whole heads lies in its layout.
    tiles = blocks._reinterpret(cache.dtype, [_STAGES, _KEYS, _DIMS], _TILE_LAYOUT)
    is_free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    is_there = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_STAGES):
        mbarrier.init(is_free.index(i), count=2)
        mbarrier.init(is_there.index(i), count=1)
    return blocks, tiles, is_free, is_there


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
    """Program (key head, tile). `k_cache` and `v_cache` describe blocks, see `BLOCK_LAYOUT`."""
    GROUP: gl.constexpr = NUM_HEADS // NUM_KV_HEADS
    QUERIES: gl.constexpr = 2 * _ROWS // GROUP
    kv_head = gl.program_id(0)
    tile = gl.num_programs(1) - 1 - gl.program_id(1)
    seq = _sequence_of(tile, cu_seqlens_q_ptr, num_seqs, QUERIES)
    begin = gl.load(cu_seqlens_q_ptr + seq)
    num_queries = gl.load(cu_seqlens_q_ptr + seq + 1) - begin
    first_query = (tile - (begin // QUERIES + seq)) * QUERIES
    if PDL:
        # What is read before is older kernels' work.
        gdc_wait()
        gdc_launch_dependents()
    if first_query < num_queries:
        first_position = gl.load(seq_lens_ptr + seq) - num_queries
        # The tile's last query is the one that sees furthest. Padding may see no key at all.
        visible = first_position + gl.minimum(first_query + QUERIES, num_queries)
        num_tiles = gl.maximum((visible + _KEYS - 1) // _KEYS, 1)
        num_blocks = (visible + BLOCK_SIZE - 1) // BLOCK_SIZE
        table_ptr = block_table_ptr + seq.to(gl.int64) * table_stride
        k = _stages(k_cache, BLOCK_SIZE)
        v = _stages(v_cache, BLOCK_SIZE)
        q = gl.allocate_shared_memory(k_cache.dtype, [2, _ROWS, _DIMS], _TILE_LAYOUT)
        turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        mbarrier.init(turn.index(0), count=1)
        mbarrier.init(turn.index(1), count=1)
        log2_scale = scale * 1.4426950408889634
        cut = (begin, first_query, num_queries, first_position, visible, num_tiles)
        gl.warp_specialize(
            [
                (_attend, (
                    q_ptr, out_ptr, q.index(0), k, v, turn, cut, kv_head, q_stride, log2_scale,
                    NUM_HEADS, GROUP, BLOCK_SIZE, 0,
                )),
                (_attend, (
                    q_ptr, out_ptr, q.index(1), k, v, turn, cut, kv_head, q_stride, log2_scale,
                    NUM_HEADS, GROUP, BLOCK_SIZE, 1,
                )),
                (_copy, (
                    k_cache, v_cache, k, v, table_ptr, num_tiles, num_blocks, kv_head, BLOCK_SIZE,
                )),
            ],
            # Warps, and registers of a thread: softmax and both sums are held in them.
            [4, 1],
            [232, 40],
        )  # fmt: skip
