"""The gated product of prompts on Hopper, in Gluon: the widest product of a layer and its gate.

A tile is 128 rows by 128 outputs, which are 128 gates and their ups. In shared memory these lie one
after the other, as one operand of 256 rows; in the sums of a thread they lie side by side. One warp
(the producer) copies boxes of 64 columns into a ring. Two warpgroups (the consumers) have 64 rows
each and run independently: while one gates its sums, the other still multiplies, and the ring is
filled for the next tile. Weights do not depend on the previous kernel, so the producer fills the
ring with weights before it waits for that kernel (programmatic dependent launch, PDL).

There is one program for each multiprocessor. Tiles of an incomplete last wave are cut along the
inputs, so that all programs end together (stream-K). A program leaves its sums of the beginning of
a tile in scratch memory; the program with the end of the tile waits for them and adds them in their
order. A program waits only for programs with a lower index, and only for work that those do before
they wait themselves. So the wait cannot deadlock.
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

from openinfer_kernels.ops.fused_linear._gluon_boxes import LAYOUT
from openinfer_kernels.ops.fused_linear._tuning import BOX

BLOCK_M = 128
"""Rows of a tile."""
BLOCK_N = 128
"""Outputs of a tile."""
HALF_M = BLOCK_M // 2
"""Rows of a consumer."""
NUM_WARPS = 4

_BLOCK_M = gl.constexpr(BLOCK_M)
_HALF_M = gl.constexpr(HALF_M)
_BLOCK_N = gl.constexpr(BLOCK_N)
_BOX = gl.constexpr(BOX)
_LAYOUT = gl.constexpr(LAYOUT)
_STAGE_BYTES = gl.constexpr((BLOCK_M + 2 * BLOCK_N) * BOX * 2)
_SUMS = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 256, 16])
)
_GATED = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
)


@gluon.jit
def _work_of(program, num_tiles, num_whole, num_sharers, NUM_STEPS: gl.constexpr):
    """Returns a program's share of the cut tiles, in steps of 64 inputs, and its items.

    Items are whole tiles, then the beginning of a cut tile, then the end of the one before it.
    There are at least as many sharers as cut tiles, so a share touches at most two of them.
    """
    cut_steps = (num_tiles - num_whole) * NUM_STEPS
    begin = gl.where(program < num_sharers, program * cut_steps // num_sharers, 0)
    end = gl.where(program < num_sharers, (program + 1) * cut_steps // num_sharers, 0)
    whole = (num_whole - program + gl.num_programs(0) - 1) // gl.num_programs(0)
    is_split = (begin // NUM_STEPS < (end - 1) // NUM_STEPS).to(gl.int32)
    num_items = whole + (begin < end).to(gl.int32) + is_split
    return program, begin, end, whole, is_split, num_items


@gluon.jit
def _item_of(item, work, num_whole, NUM_STEPS: gl.constexpr):
    """Returns the tile of an item, and its first and last step."""
    program, begin, end, whole, is_split, _ = work
    is_beginning = item - whole < is_split
    tile = gl.where(is_beginning, (end - 1) // NUM_STEPS, begin // NUM_STEPS)
    first = gl.where(is_beginning, 0, begin - tile * NUM_STEPS)
    last = gl.minimum(end - tile * NUM_STEPS, NUM_STEPS)
    is_whole = item < whole
    tile = gl.where(is_whole, program + item * gl.num_programs(0), num_whole + tile)
    return tile, gl.where(is_whole, 0, first), gl.where(is_whole, NUM_STEPS, last)


@gluon.jit
def _place_of(tile, num_rows, N: gl.constexpr, GROUP_M: gl.constexpr):
    """Returns the first row and the first output of a tile.

    GROUP_M tiles of rows are taken with each tile of outputs, so that both stay in the L2 cache.
    """
    NUM_N_TILES: gl.constexpr = (N + _BLOCK_N - 1) // _BLOCK_N
    group = tile // (GROUP_M * NUM_N_TILES)
    rows = gl.minimum((num_rows + _BLOCK_M - 1) // _BLOCK_M - group * GROUP_M, GROUP_M)
    within = tile - group * (GROUP_M * NUM_N_TILES)
    return (group * GROUP_M + within % rows) * _BLOCK_M, within // rows * _BLOCK_N


@gluon.jit
def _copy_weights(weight, ring, is_full, stage, out, step, N: gl.constexpr):
    """Starts to copy the gates and ups of a step into a stage."""
    mbarrier.expect(is_full.index(stage), _STAGE_BYTES)
    for i in gl.static_range(2):
        at = [out + i * N, step * _BOX]
        tma.async_copy_global_to_shared(weight, at, is_full.index(stage), ring.index(stage * 2 + i))


@gluon.jit
def _copy_rows(x, ring, is_full, stage, row, step):
    """Starts to copy the rows of a step into a stage."""
    at = [row, step * _BOX]
    tma.async_copy_global_to_shared(x, at, is_full.index(stage), ring.index(stage))


@gluon.jit
def _produce(
    x, weight, rings, work, num_whole, num_rows, N: gl.constexpr, NUM_STEPS: gl.constexpr,
    NUM_STAGES: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    """Runs the producer warp."""
    x_ring, w_ring, is_full, is_empty = rings
    copied = 0
    for item in range(work[5]):
        tile, first, last = _item_of(item, work, num_whole, NUM_STEPS)
        row, out = _place_of(tile, num_rows, N, GROUP_M)
        if item == 0:
            copied = gl.minimum(last - first, NUM_STAGES)
            for stage in range(copied):
                _copy_weights(weight, w_ring, is_full, stage, out, first + stage, N)
            gdc_wait()
            for stage in range(copied):
                _copy_rows(x, x_ring, is_full, stage, row, first + stage)
            first += copied
        for step in range(first, last):
            stage = copied % NUM_STAGES
            mbarrier.wait(is_empty.index(stage), (copied // NUM_STAGES + 1) & 1)
            _copy_weights(weight, w_ring, is_full, stage, out, step, N)
            _copy_rows(x, x_ring, is_full, stage, row, step)
            copied += 1


@gluon.jit
def _consume(
    out_boxes, staging, rings, work, cut, parts_ptr, flags_ptr, num_rows, N: gl.constexpr,
    NUM_STEPS: gl.constexpr, NUM_STAGES: gl.constexpr, GROUP_M: gl.constexpr,
    WARPGROUP: gl.constexpr,
):  # fmt: skip
    """Runs one of the two consumer warpgroups: its half of each tile's rows."""
    num_tiles, num_whole, num_sharers = cut
    program = work[0]
    done = 0
    for item in range(work[5]):
        tile, first, last = _item_of(item, work, num_whole, NUM_STEPS)
        acc = _sum_of(rings, done, last - first, NUM_STAGES, WARPGROUP)
        done += last - first
        if item == 0:
            # The previous kernel may still use the output's memory and the flags.
            gdc_wait()
        if last < NUM_STEPS:
            _store_part(acc, parts_ptr, flags_ptr, program * 2 + WARPGROUP)
        else:
            first_program = program
            if first > 0:
                cut_steps = (num_tiles - num_whole) * NUM_STEPS
                tile_begin = (tile - num_whole) * NUM_STEPS
                first_program = ((tile_begin + 1) * num_sharers - 1) // cut_steps
            for other in range(first_program, program):
                acc = _add_part(acc, parts_ptr, flags_ptr, other * 2 + WARPGROUP)
            gate, up = acc.reshape([_HALF_M, 2, _BLOCK_N]).permute((0, 2, 1)).split()
            row, out = _place_of(tile, num_rows, N, GROUP_M)
            gated = gate / (1.0 + gl.exp(-gate)) * up
            _store(gated, out_boxes, staging, row + WARPGROUP * _HALF_M, out)
    tma.store_wait(0)


@gluon.jit
def _sum_of(rings, done, num_steps, NUM_STAGES: gl.constexpr, WARPGROUP: gl.constexpr):
    """Returns the sums of `num_steps` steps, after the `done` steps before them."""
    x_ring, w_ring, is_full, is_empty = rings
    acc = gl.zeros([_HALF_M, 2 * _BLOCK_N], gl.float32, _SUMS)
    for step in range(done, done + num_steps):
        stage = step % NUM_STAGES
        mbarrier.wait(is_full.index(stage), (step // NUM_STAGES) & 1)
        rows = x_ring.index(stage * 2 + WARPGROUP)
        acc = warpgroup_mma(rows, w_ring.index(stage).permute((1, 0)), acc, is_async=True)
        # Once only this step's product is in flight, that of the step before is done.
        acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(
            is_empty.index((step + NUM_STAGES - 1) % NUM_STAGES), count=1, pred=step > done
        )
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(is_empty.index((done + num_steps - 1) % NUM_STAGES), count=1)
    return acc


@gluon.jit
def _store(out, out_boxes, staging, first_row, first_out):
    """Stores a warpgroup's outputs by TMA, which leaves out elements outside of the matrix."""
    out = gl.convert_layout(out.to(out_boxes.dtype), _GATED)
    # The previous store must have read `staging`.
    tma.store_wait(0)
    gl.thread_barrier()
    staging.store(out)
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(out_boxes, [first_row, first_out], staging)


@gluon.jit
def _part_pointers(parts_ptr, part):
    """Returns where partial sums are stored.

    A warp holds 8 by 8 of them in one register of each thread; these 64 are contiguous.
    """
    rows = gl.arange(0, _HALF_M, gl.SliceLayout(1, _SUMS))
    outs = gl.arange(0, 2 * _BLOCK_N, gl.SliceLayout(0, _SUMS))
    at_row = rows // 8 * (8 * 2 * _BLOCK_N) + rows % 8 * 8
    at_out = outs // 8 * 64 + outs % 8
    return parts_ptr + part * (_HALF_M * 2 * _BLOCK_N) + at_row[:, None] + at_out[None, :]


@gluon.jit
def _store_part(acc, parts_ptr, flags_ptr, part):
    """Stores partial sums in scratch memory for the program with the end of the tile."""
    gl.store(_part_pointers(parts_ptr, part), acc)
    gl.thread_barrier()
    gl.atomic_xchg(flags_ptr + part, 1, sem="release")


@gluon.jit
def _add_part(acc, parts_ptr, flags_ptr, part):
    """Waits for the partial sums of another program and adds them."""
    is_full = gl.atomic_add(flags_ptr + part, 0, sem="acquire")
    while is_full == 0:
        is_full = gl.atomic_add(flags_ptr + part, 0, sem="acquire")
    # Bypasses the L1 cache: another multiprocessor wrote the sums.
    acc += gl.load(_part_pointers(parts_ptr, part), cache_modifier=".cg")
    gl.store(flags_ptr + part, 0)
    return acc


@gluon.jit(do_not_specialize=["num_rows", "num_whole", "num_sharers"])
def prompts_kernel(
    x,
    weight,
    out,
    parts_ptr,
    flags_ptr,
    num_rows,
    num_whole,
    num_sharers,
    K: gl.constexpr,
    N: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    GROUP_M: gl.constexpr,
):
    """Computes silu(gate) * up for all rows, with one program for each multiprocessor.

    `x`, `weight` and `out` are TMA descriptors of boxes [BLOCK_M, BOX], [BLOCK_N, BOX] and
    [HALF_M, BLOCK_N] in `LAYOUT`; outside of the matrices, zeros are loaded and nothing is stored.
    Tiles from `num_whole` on are cut among the first `num_sharers` programs, at least one for each
    tile. `parts_ptr` is [num_sharers, 2, HALF_M, 2 * BLOCK_N], float32; `flags_ptr` [programs, 2]
    says which parts are there, and is 0 before and after.
    """
    gdc_launch_dependents()
    NUM_STEPS: gl.constexpr = (K + _BOX - 1) // _BOX
    NUM_N_TILES: gl.constexpr = (N + _BLOCK_N - 1) // _BLOCK_N
    num_tiles = (num_rows + _BLOCK_M - 1) // _BLOCK_M * NUM_N_TILES
    work = _work_of(gl.program_id(0), num_tiles, num_whole, num_sharers, NUM_STEPS)
    cut = (num_tiles, num_whole, num_sharers)
    x_halves = gl.allocate_shared_memory(x.dtype, [NUM_STAGES * 2, _HALF_M, _BOX], _LAYOUT)
    x_ring = x_halves._reinterpret(x.dtype, [NUM_STAGES, _BLOCK_M, _BOX], _LAYOUT)
    w_halves = gl.allocate_shared_memory(weight.dtype, [NUM_STAGES * 2, _BLOCK_N, _BOX], _LAYOUT)
    w_ring = w_halves._reinterpret(weight.dtype, [NUM_STAGES, 2 * _BLOCK_N, _BOX], _LAYOUT)
    staging = gl.allocate_shared_memory(out.dtype, [2, _HALF_M, _BLOCK_N], _LAYOUT)
    is_full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    is_empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(NUM_STAGES):
        mbarrier.init(is_full.index(stage), count=1)
        mbarrier.init(is_empty.index(stage), count=2)
    to_copy = (x_ring, w_halves, is_full, is_empty)
    to_multiply = (x_halves, w_ring, is_full, is_empty)
    gl.warp_specialize(
        [
            (_consume, (
                out, staging.index(0), to_multiply, work, cut, parts_ptr, flags_ptr, num_rows,
                N, NUM_STEPS, NUM_STAGES, GROUP_M, 0,
            )),
            (_consume, (
                out, staging.index(1), to_multiply, work, cut, parts_ptr, flags_ptr, num_rows,
                N, NUM_STEPS, NUM_STAGES, GROUP_M, 1,
            )),
            (_produce, (
                x, weight, to_copy, work, num_whole, num_rows, N, NUM_STEPS, NUM_STAGES, GROUP_M,
            )),
        ],
        # Warps and registers per thread of the second consumer and of the producer. Half of a
        # consumer's registers hold sums.
        [4, 1],
        [232, 40],
    )  # fmt: skip
