"""The product of many rows on Hopper, in Gluon: copies by the copy engine, products by warpgroups.

A program has a tile of 64 outputs, or of 64 gates and their ups, and a share of the inputs. The
weight is the left operand, for its 64 rows fill the tensor cores; all rows of the step are the
right one. One warp copies boxes of 64 columns into a ring in shared memory, four warps multiply.
Weights do not depend on the kernel before, so the ring is full of them before the copying warp
waits for that kernel (programmatic dependent launch); nothing else is read before the wait.

Where the inputs of a tile are shared out, the program that is done last adds all shares in their
order, so that sums do not depend on which one that is.
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

TILE_OUT = 64
"""Outputs of a program."""
BOX = 64
"""Columns of a box: a swizzled row of shared memory in 16-bit numbers."""
WEIGHT_BOXES = 2
"""Boxes of weights in a stage: a tile's next columns, or a gate's and its up's."""
NUM_WARPS = 4
LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)

_OUTS = gl.constexpr(TILE_OUT)
_BOX = gl.constexpr(BOX)
_BOXES = gl.constexpr(WEIGHT_BOXES)
_LAYOUT = gl.constexpr(LAYOUT)
# Outputs lie side by side in the result.
_RESULT = gl.constexpr(gl.BlockedLayout([4, 1], [16, 2], [1, NUM_WARPS], [0, 1]))


@gluon.jit
def _copy_weights(
    weight, ring, is_there, stage, first_out, first_in, OUT: gl.constexpr, GATED: gl.constexpr
):  # fmt: skip
    for box in gl.static_range(_BOXES):
        out = first_out + box * OUT if GATED else first_out
        column = first_in if GATED else first_in + box * _BOX
        at = ring.index(stage * _BOXES + box)
        tma.async_copy_global_to_shared(weight, [out, column], is_there.index(stage), at)


@gluon.jit
def _copy_rows(x, ring, is_there, stage, first_in, X_BOXES: gl.constexpr):
    for box in gl.static_range(X_BOXES):
        at = ring.index(stage * X_BOXES + box)
        tma.async_copy_global_to_shared(x, [0, first_in + box * _BOX], is_there.index(stage), at)


@gluon.jit
def _copy(
    x, weight, rings, share, OUT: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
    GATED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The copying warp."""
    w_ring, x_ring, is_there, is_free = rings
    _, first_out, begin, num_steps = share
    X_BOXES: gl.constexpr = 1 if GATED else _BOXES
    BYTES: gl.constexpr = (_BOXES * _OUTS + X_BOXES * ROWS) * _BOX * 2
    STEP: gl.constexpr = X_BOXES * _BOX
    for step in gl.static_range(STAGES):
        mbarrier.expect(is_there.index(step), BYTES)
        at = (begin + step) * STEP
        _copy_weights(weight, w_ring, is_there, step, first_out, at, OUT, GATED)
    if PDL:
        gdc_wait()
    if PDL and not GATED:
        # Not before, or the next kernel's weights would come instead of those waited for.
        gdc_launch_dependents()
    for step in gl.static_range(STAGES):
        _copy_rows(x, x_ring, is_there, step, (begin + step) * STEP, X_BOXES)
    for step in range(STAGES, num_steps):
        stage = step % STAGES
        mbarrier.wait(is_free.index(stage), (step // STAGES + 1) & 1)
        mbarrier.expect(is_there.index(stage), BYTES)
        at = (begin + step) * STEP
        _copy_weights(weight, w_ring, is_there, stage, first_out, at, OUT, GATED)
        _copy_rows(x, x_ring, is_there, stage, at, X_BOXES)


@gluon.jit
def _multiply(
    rings, share, parts_ptr, counts_ptr, residual_ptr, out_ptr, num_rows, OUT: gl.constexpr,
    ROWS: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr, GATED: gl.constexpr,
    ADD: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The multiplying warps, and what stands behind the product."""
    w_ring, x_ring, is_there, is_free = rings
    tile, first_out, _, num_steps = share
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, ROWS, 16]
    )
    acc = gl.zeros([_OUTS, ROWS], gl.float32, MMA)
    up = gl.zeros([_OUTS, ROWS], gl.float32, MMA)
    for step in range(num_steps):
        stage = step % STAGES
        mbarrier.wait(is_there.index(stage), (step // STAGES) & 1)
        first = w_ring.index(stage * _BOXES)
        second = w_ring.index(stage * _BOXES + 1)
        # What was started a step ago is done when only this step's two are on their way.
        if GATED:
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
        mbarrier.arrive(is_free.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
    acc, up = warpgroup_mma_wait(0, deps=[acc, up])
    # Rows were there after the copying warp's wait; what is read from here on needs one of its own.
    if PDL:
        gdc_wait()
    if SPLITS == 1:
        if GATED:
            acc = acc / (1.0 + gl.exp(-acc)) * up
        out = gl.convert_layout(acc, _RESULT)
        _store(out, residual_ptr, out_ptr, first_out, num_rows, OUT, ADD)
    else:
        gl.static_assert(not GATED, "gate and up are not shared out")
        PART: gl.constexpr = _OUTS * ROWS
        outs = gl.arange(0, _OUTS, gl.SliceLayout(1, MMA))
        rows = gl.arange(0, ROWS, gl.SliceLayout(0, MMA))
        part_ptr = parts_ptr + gl.program_id(0) * PART
        gl.store(part_ptr + outs[:, None] + (rows * _OUTS)[None, :], acc)
        gl.thread_barrier()
        arrived = gl.atomic_add(counts_ptr + tile, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            out = _sum_parts(parts_ptr + tile * (SPLITS * PART), SPLITS, ROWS)
            _store(out, residual_ptr, out_ptr, first_out, num_rows, OUT, ADD)
            gl.store(counts_ptr + tile, 0)


@gluon.jit
def _sum_parts(parts_ptr, SPLITS: gl.constexpr, ROWS: gl.constexpr):
    # Other multiprocessors wrote them, which the first cache does not know of.
    outs = gl.arange(0, _OUTS, gl.SliceLayout(1, _RESULT))
    rows = gl.arange(0, ROWS, gl.SliceLayout(0, _RESULT))
    at = parts_ptr + outs[:, None] + (rows * _OUTS)[None, :]
    out = gl.load(at, cache_modifier=".cg")
    for i in gl.static_range(1, SPLITS):
        out += gl.load(at + i * (_OUTS * ROWS), cache_modifier=".cg")
    return out


@gluon.jit
def _store(
    out, residual_ptr, out_ptr, first_out, num_rows, OUT: gl.constexpr, ADD: gl.constexpr
):  # fmt: skip
    outs = first_out + gl.arange(0, out.shape[0], gl.SliceLayout(1, _RESULT))
    rows = gl.arange(0, out.shape[1], gl.SliceLayout(0, _RESULT))
    mask = (outs < OUT)[:, None] & (rows < num_rows)[None, :]
    at = outs[:, None] + (rows * OUT)[None, :]
    if ADD:
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
    IN: gl.constexpr,
    OUT: gl.constexpr,
    ROWS: gl.constexpr,
    SPLITS: gl.constexpr,
    STAGES: gl.constexpr,
    GATED: gl.constexpr,
    ADD: gl.constexpr,
    PDL: gl.constexpr,
):
    """Program (tile of outputs and share of inputs) of up to ROWS rows.

    `x` and `weight` describe boxes of [ROWS, BOX] and [TILE_OUT, BOX] in `LAYOUT`: what lies
    outside of them arrives as zeros. `parts_ptr` has room for [programs, ROWS, TILE_OUT] in
    float32; `counts_ptr` has a zero for each tile, which is one again at the end. A share has at
    least STAGES steps.
    """
    if PDL and GATED:
        gdc_launch_dependents()
    X_BOXES: gl.constexpr = 1 if GATED else _BOXES
    NUM_STEPS: gl.constexpr = (IN + X_BOXES * _BOX - 1) // (X_BOXES * _BOX)
    tile = gl.program_id(0) // SPLITS
    split = gl.program_id(0) % SPLITS
    begin = split * NUM_STEPS // SPLITS
    share = (tile, tile * _OUTS, begin, (split + 1) * NUM_STEPS // SPLITS - begin)
    w_ring = gl.allocate_shared_memory(weight.dtype, [STAGES * _BOXES, _OUTS, _BOX], _LAYOUT)
    x_ring = gl.allocate_shared_memory(x.dtype, [STAGES * X_BOXES, ROWS, _BOX], _LAYOUT)
    is_there = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    is_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(is_there.index(stage), count=1)
        mbarrier.init(is_free.index(stage), count=1)
    rings = (w_ring, x_ring, is_there, is_free)
    gl.warp_specialize(
        [
            (_multiply, (
                rings, share, parts_ptr, counts_ptr, residual_ptr, out_ptr, num_rows,
                OUT, ROWS, SPLITS, STAGES, GATED, ADD, PDL,
            )),
            (_copy, (x, weight, rings, share, OUT, ROWS, STAGES, GATED, PDL)),
        ],
        # Warps, and registers of a thread.
        [1],
        [40],
    )  # fmt: skip
