"""The kernel of fused_linear for up to 64 rows on Hopper, in Gluon: TMA copies, warpgroup products.

A program has a tile of 64 outputs, or of 64 gates and their ups, and a share of the inputs. The
weight is the left operand, because its 64 rows fill the tensor cores; all rows of the step are the
right operand. One warp (the producer) copies boxes of 64 columns into a ring in shared memory, four
warps (the consumer) multiply. Weights do not depend on the previous kernel, so the producer fills
the ring with weights before it waits for that kernel (programmatic dependent launch, PDL); nothing
else is read before the wait.

If the inputs of a tile are split, the program that finishes last adds all partial sums in their
order, so that results do not depend on which program that is.
"""

# Kernel arguments are Gluon's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from openinfer_kernels.ops.fused_linear._gluon_boxes import LAYOUT
from openinfer_kernels.ops.fused_linear._tuning import BOX, MANY_ROWS_BLOCK_N, WEIGHT_BOXES

NUM_WARPS = 4

_BLOCK_N = gl.constexpr(MANY_ROWS_BLOCK_N)
_BOX = gl.constexpr(BOX)
_BOXES = gl.constexpr(WEIGHT_BOXES)
_LAYOUT = gl.constexpr(LAYOUT)
# Threads store neighbouring outputs, which are contiguous in the result.
_RESULT = gl.constexpr(gl.BlockedLayout([4, 1], [16, 2], [1, NUM_WARPS], [0, 1]))


@gluon.jit
def _copy_weights(
    weight, ring, is_full, stage, first_out, first_in, N: gl.constexpr, IS_GATED: gl.constexpr
):  # fmt: skip
    """Starts to copy the weights of a step into a stage."""
    for box in gl.static_range(_BOXES):
        out = first_out + box * N if IS_GATED else first_out
        column = first_in if IS_GATED else first_in + box * _BOX
        at = ring.index(stage * _BOXES + box)
        tma.async_copy_global_to_shared(weight, [out, column], is_full.index(stage), at)


@gluon.jit
def _copy_rows(x, ring, is_full, stage, first_in, X_BOXES: gl.constexpr):
    """Starts to copy the rows of a step into a stage."""
    for box in gl.static_range(X_BOXES):
        at = ring.index(stage * X_BOXES + box)
        tma.async_copy_global_to_shared(x, [0, first_in + box * _BOX], is_full.index(stage), at)


@gluon.jit
def _produce(
    x, weight, rings, share, N: gl.constexpr, BLOCK_M: gl.constexpr, NUM_STAGES: gl.constexpr,
    IS_GATED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Runs the producer warp."""
    w_ring, x_ring, is_full, is_empty = rings
    _, first_out, begin, num_steps = share
    X_BOXES: gl.constexpr = 1 if IS_GATED else _BOXES
    BYTES: gl.constexpr = (_BOXES * _BLOCK_N + X_BOXES * BLOCK_M) * _BOX * 2
    STEP: gl.constexpr = X_BOXES * _BOX
    for step in gl.static_range(NUM_STAGES):
        mbarrier.expect(is_full.index(step), BYTES)
        at = (begin + step) * STEP
        _copy_weights(weight, w_ring, is_full, step, first_out, at, N, IS_GATED)
    if PDL:
        gdc_wait()
    if PDL and not IS_GATED:
        # Only after the wait: the next kernel's weights would compete for bandwidth with those that
        # the previous kernel still reads.
        gdc_launch_dependents()
    for step in gl.static_range(NUM_STAGES):
        _copy_rows(x, x_ring, is_full, step, (begin + step) * STEP, X_BOXES)
    for step in range(NUM_STAGES, num_steps):
        stage = step % NUM_STAGES
        mbarrier.wait(is_empty.index(stage), (step // NUM_STAGES + 1) & 1)
        mbarrier.expect(is_full.index(stage), BYTES)
        at = (begin + step) * STEP
        _copy_weights(weight, w_ring, is_full, stage, first_out, at, N, IS_GATED)
        _copy_rows(x, x_ring, is_full, stage, at, X_BOXES)


@gluon.jit
def _consume(
    rings, share, parts_ptr, counts_ptr, residual_ptr, out_ptr, num_rows, N: gl.constexpr,
    BLOCK_M: gl.constexpr, SPLIT_K: gl.constexpr, NUM_STAGES: gl.constexpr, IS_GATED: gl.constexpr,
    ADD_RESIDUAL: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Runs the consumer warps: products, then gate, residual and store."""
    w_ring, x_ring, is_full, is_empty = rings
    tile, first_out, _, num_steps = share
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BLOCK_M, 16]
    )
    acc = gl.zeros([_BLOCK_N, BLOCK_M], gl.float32, MMA)
    up = gl.zeros([_BLOCK_N, BLOCK_M], gl.float32, MMA)
    for step in range(num_steps):
        stage = step % NUM_STAGES
        mbarrier.wait(is_full.index(stage), (step // NUM_STAGES) & 1)
        first = w_ring.index(stage * _BOXES)
        second = w_ring.index(stage * _BOXES + 1)
        # Once only this step's two products are in flight, those of the step before are done.
        if IS_GATED:
            rows = x_ring.index(stage).permute((1, 0))
            acc = warpgroup_mma(first, rows, acc, is_async=True)
            up = warpgroup_mma(second, rows, up, is_async=True)
            acc, up = warpgroup_mma_wait(2, deps=[acc, up])
        else:
            rows = x_ring.index(stage * _BOXES).permute((1, 0))
            acc = warpgroup_mma(first, rows, acc, is_async=True)
            rows = x_ring.index(stage * _BOXES + 1).permute((1, 0))
            acc = warpgroup_mma(second, rows, acc, is_async=True)
            acc = warpgroup_mma_wait(2, deps=[acc])
        mbarrier.arrive(
            is_empty.index((step + NUM_STAGES - 1) % NUM_STAGES), count=1, pred=step > 0
        )
    acc, up = warpgroup_mma_wait(0, deps=[acc, up])
    # The producer's wait covers `x` only. The residual and the partial sums need a wait of their
    # own.
    if PDL:
        gdc_wait()
    if SPLIT_K == 1:
        if IS_GATED:
            acc = acc / (1.0 + gl.exp(-acc)) * up
        out = gl.convert_layout(acc, _RESULT)
        _store(out, residual_ptr, out_ptr, first_out, num_rows, N, ADD_RESIDUAL)
    else:
        gl.static_assert(not IS_GATED, "inputs of gates and ups are not split")
        PART: gl.constexpr = _BLOCK_N * BLOCK_M
        outs = gl.arange(0, _BLOCK_N, gl.SliceLayout(1, MMA))
        rows = gl.arange(0, BLOCK_M, gl.SliceLayout(0, MMA))
        part_ptr = parts_ptr + gl.program_id(0) * PART
        gl.store(part_ptr + outs[:, None] + (rows * _BLOCK_N)[None, :], acc)
        gl.thread_barrier()
        arrived = gl.atomic_add(counts_ptr + tile, 1, sem="acq_rel")
        if arrived == SPLIT_K - 1:
            out = _sum_parts(parts_ptr + tile * (SPLIT_K * PART), SPLIT_K, BLOCK_M)
            _store(out, residual_ptr, out_ptr, first_out, num_rows, N, ADD_RESIDUAL)
            gl.store(counts_ptr + tile, 0)


@gluon.jit
def _sum_parts(parts_ptr, SPLIT_K: gl.constexpr, BLOCK_M: gl.constexpr):
    """Loads the partial sums of a tile and adds them in their order.

    The loads bypass the L1 cache: other multiprocessors wrote the sums.
    """
    outs = gl.arange(0, _BLOCK_N, gl.SliceLayout(1, _RESULT))
    rows = gl.arange(0, BLOCK_M, gl.SliceLayout(0, _RESULT))
    at = parts_ptr + outs[:, None] + (rows * _BLOCK_N)[None, :]
    out = gl.load(at, cache_modifier=".cg")
    for i in gl.static_range(1, SPLIT_K):
        out += gl.load(at + i * (_BLOCK_N * BLOCK_M), cache_modifier=".cg")
    return out


@gluon.jit
def _store(
    out, residual_ptr, out_ptr, first_out, num_rows, N: gl.constexpr, ADD_RESIDUAL: gl.constexpr
):  # fmt: skip
    """Adds the residual if there is one, and stores a tile: [outputs, rows] to [rows, N]."""
    outs = first_out + gl.arange(0, out.shape[0], gl.SliceLayout(1, _RESULT))
    rows = gl.arange(0, out.shape[1], gl.SliceLayout(0, _RESULT))
    mask = (outs < N)[:, None] & (rows < num_rows)[None, :]
    at = outs[:, None] + (rows * N)[None, :]
    if ADD_RESIDUAL:
        out += gl.load(residual_ptr + at, mask=mask, other=0.0).to(gl.float32)
    gl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)


@gluon.jit(do_not_specialize=["num_rows"])
def many_rows_kernel(
    x,
    weight,
    parts_ptr,
    counts_ptr,
    residual_ptr,
    out_ptr,
    num_rows,
    K: gl.constexpr,
    N: gl.constexpr,
    BLOCK_M: gl.constexpr,
    SPLIT_K: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    IS_GATED: gl.constexpr,
    ADD_RESIDUAL: gl.constexpr,
    PDL: gl.constexpr,
):
    """Computes one share of a tile for up to BLOCK_M rows: program (tile, split).

    `x` and `weight` are TMA descriptors of boxes [BLOCK_M, BOX] and [MANY_ROWS_BLOCK_N, BOX] in
    `LAYOUT`; outside of the matrices, zeros are loaded. `parts_ptr` is [programs, BLOCK_M,
    MANY_ROWS_BLOCK_N], float32, and None if SPLIT_K is 1. `counts_ptr` counts the finished splits
    of each tile; it is 0 before and after. `residual_ptr` and `out_ptr` are [num_rows, N]. A share
    has at least NUM_STAGES steps.
    """
    if PDL and IS_GATED:
        gdc_launch_dependents()
    X_BOXES: gl.constexpr = 1 if IS_GATED else _BOXES
    NUM_STEPS: gl.constexpr = (K + X_BOXES * _BOX - 1) // (X_BOXES * _BOX)
    tile = gl.program_id(0) // SPLIT_K
    split = gl.program_id(0) % SPLIT_K
    begin = split * NUM_STEPS // SPLIT_K
    share = (tile, tile * _BLOCK_N, begin, (split + 1) * NUM_STEPS // SPLIT_K - begin)
    w_ring = gl.allocate_shared_memory(weight.dtype, [NUM_STAGES * _BOXES, _BLOCK_N, _BOX], _LAYOUT)
    x_ring = gl.allocate_shared_memory(x.dtype, [NUM_STAGES * X_BOXES, BLOCK_M, _BOX], _LAYOUT)
    is_full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    is_empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(NUM_STAGES):
        mbarrier.init(is_full.index(stage), count=1)
        mbarrier.init(is_empty.index(stage), count=1)
    rings = (w_ring, x_ring, is_full, is_empty)
    gl.warp_specialize(
        [
            (_consume, (
                rings, share, parts_ptr, counts_ptr, residual_ptr, out_ptr, num_rows,
                N, BLOCK_M, SPLIT_K, NUM_STAGES, IS_GATED, ADD_RESIDUAL, PDL,
            )),
            (_produce, (x, weight, rings, share, N, BLOCK_M, NUM_STAGES, IS_GATED, PDL)),
        ],
        # Warps and registers per thread of the producer.
        [1],
        [40],
    )  # fmt: skip
