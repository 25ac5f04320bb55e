"""Gate and up of prompts on Hopper, in Gluon: the widest product of a layer, gated as it ends.

A tile is 128 rows by 128 outputs, so by 128 gates and their ups. These lie one below the other in
shared memory, as one operand of 256 rows, and side by side in the sums of a thread. One warp copies
boxes of 64 columns into a ring. Two warpgroups have 64 rows each, and go on by themselves: while
one gates what it has, the other still multiplies, and the ring fills for the next tile. Weights do
not depend on the kernel before, so the ring is full of them before the copying warp waits for that
kernel (programmatic dependent launch).

There is a program for each multiprocessor. Tiles that do not go round are cut along the inputs, so
that all programs end together. A program leaves its sums of a tile's beginning in scratch memory,
where the one that has the tile's end waits for them and adds them in their order. It waits for
programs before it only, and for what those do before they wait: so whatever is waited for runs.
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

from openinfer_kernels.ops.fused_linear._gluon_many_rows_kernels import BOX, LAYOUT

TILE_ROWS = 128
TILE_OUT = 128
"""Outputs of a tile."""
HALF_ROWS = TILE_ROWS // 2
"""Rows of a warpgroup."""
NUM_WARPS = 4

_ROWS = gl.constexpr(TILE_ROWS)
_HALF = gl.constexpr(HALF_ROWS)
_OUTS = gl.constexpr(TILE_OUT)
_BOX = gl.constexpr(BOX)
_LAYOUT = gl.constexpr(LAYOUT)
_STAGE_BYTES = gl.constexpr((TILE_ROWS + 2 * TILE_OUT) * BOX * 2)
_SUMS = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 256, 16])
)
_GATED = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
)


@gluon.jit
def _work_of(program, num_tiles, num_whole, num_sharers, STEPS: gl.constexpr):
    """A program's share of the cut tiles, as steps from the first one's beginning; its items.

    These are whole tiles, then the beginning of a tile, then the end of the one before: with as
    many sharers as tiles, a share is of two at most.
    """
    cut_steps = (num_tiles - num_whole) * STEPS
    begin = gl.where(program < num_sharers, program * cut_steps // num_sharers, 0)
    end = gl.where(program < num_sharers, (program + 1) * cut_steps // num_sharers, 0)
    whole = (num_whole - program + gl.num_programs(0) - 1) // gl.num_programs(0)
    is_split = (begin // STEPS < (end - 1) // STEPS).to(gl.int32)
    num_items = whole + (begin < end).to(gl.int32) + is_split
    return program, begin, end, whole, is_split, num_items


@gluon.jit
def _item_of(item, work, num_whole, STEPS: gl.constexpr):
    """The tile of an item, and which steps of it."""
    program, begin, end, whole, is_split, _ = work
    is_beginning = item - whole < is_split
    tile = gl.where(is_beginning, (end - 1) // STEPS, begin // STEPS)
    first = gl.where(is_beginning, 0, begin - tile * STEPS)
    last = gl.minimum(end - tile * STEPS, STEPS)
    is_whole = item < whole
    tile = gl.where(is_whole, program + item * gl.num_programs(0), num_whole + tile)
    return tile, gl.where(is_whole, 0, first), gl.where(is_whole, STEPS, last)


@gluon.jit
def _place_of(tile, num_rows, OUT: gl.constexpr, GROUP: gl.constexpr):
    """First row and first output: a few tiles of rows by all outputs, so that both stay in L2."""
    COLUMNS: gl.constexpr = (OUT + _OUTS - 1) // _OUTS
    group = tile // (GROUP * COLUMNS)
    rows = gl.minimum((num_rows + _ROWS - 1) // _ROWS - group * GROUP, GROUP)
    within = tile - group * (GROUP * COLUMNS)
    return (group * GROUP + within % rows) * _ROWS, within // rows * _OUTS


@gluon.jit
def _copy_weights(weight, ring, is_there, stage, out, step, OUT: gl.constexpr):
    mbarrier.expect(is_there.index(stage), _STAGE_BYTES)
    for i in gl.static_range(2):
        at = [out + i * OUT, step * _BOX]
        tma.async_copy_global_to_shared(
            weight, at, is_there.index(stage), ring.index(stage * 2 + i)
        )


@gluon.jit
def _copy_rows(x, ring, is_there, stage, row, step):
    at = [row, step * _BOX]
    tma.async_copy_global_to_shared(x, at, is_there.index(stage), ring.index(stage))


@gluon.jit
def _copy(
    x, weight, rings, work, num_whole, num_rows, OUT: gl.constexpr, STEPS: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """The copying warp."""
    x_ring, w_ring, is_there, is_free = rings
    copied = 0
    for item in range(work[5]):
        tile, first, last = _item_of(item, work, num_whole, STEPS)
        row, out = _place_of(tile, num_rows, OUT, GROUP)
        if item == 0:
            copied = gl.minimum(last - first, STAGES)
            for stage in range(copied):
                _copy_weights(weight, w_ring, is_there, stage, out, first + stage, OUT)
            gdc_wait()
            for stage in range(copied):
                _copy_rows(x, x_ring, is_there, stage, row, first + stage)
            first += copied
        for step in range(first, last):
            stage = copied % STAGES
            mbarrier.wait(is_free.index(stage), (copied // STAGES + 1) & 1)
            _copy_weights(weight, w_ring, is_there, stage, out, step, OUT)
            _copy_rows(x, x_ring, is_there, stage, row, step)
            copied += 1


@gluon.jit
def _multiply(
    out_boxes, staging, rings, work, cut, parts_ptr, flags_ptr, num_rows, OUT: gl.constexpr,
    STEPS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, WHO: gl.constexpr,
):  # fmt: skip
    """One of the two warpgroups: its half of each tile's rows."""
    num_tiles, num_whole, num_sharers = cut
    program = work[0]
    done = 0
    for item in range(work[5]):
        tile, first, last = _item_of(item, work, num_whole, STEPS)
        acc = _sum_of(rings, done, last - first, STAGES, WHO)
        done += last - first
        if item == 0:
            # What is written, and flags, may be in use until the kernel before is done.
            gdc_wait()
        if last < STEPS:
            _leave(acc, parts_ptr, flags_ptr, program * 2 + WHO)
        else:
            first_program = program
            if first > 0:
                cut_steps = (num_tiles - num_whole) * STEPS
                tile_begin = (tile - num_whole) * STEPS
                first_program = ((tile_begin + 1) * num_sharers - 1) // cut_steps
            for other in range(first_program, program):
                acc = _add_part(acc, parts_ptr, flags_ptr, other * 2 + WHO)
            gate, up = acc.reshape([_HALF, 2, _OUTS]).permute((0, 2, 1)).split()
            row, out = _place_of(tile, num_rows, OUT, GROUP)
            gated = gate / (1.0 + gl.exp(-gate)) * up
            _store(gated, out_boxes, staging, row + WHO * _HALF, out)
    tma.store_wait(0)


@gluon.jit
def _sum_of(rings, done, num_steps, STAGES: gl.constexpr, WHO: gl.constexpr):
    """Sums of a number of steps, behind those that are done."""
    x_ring, w_ring, is_there, is_free = rings
    acc = gl.zeros([_HALF, 2 * _OUTS], gl.float32, _SUMS)
    for step in range(done, done + num_steps):
        stage = step % STAGES
        mbarrier.wait(is_there.index(stage), (step // STAGES) & 1)
        rows = x_ring.index(stage * 2 + WHO)
        acc = warpgroup_mma(rows, w_ring.index(stage).permute((1, 0)), acc, is_async=True)
        # What was started a step ago is done when only this step's is on its way.
        acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(is_free.index((step + STAGES - 1) % STAGES), count=1, pred=step > done)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(is_free.index((done + num_steps - 1) % STAGES), count=1)
    return acc


@gluon.jit
def _store(out, out_boxes, staging, first_row, first_out):
    """Stores a warpgroup's outputs; the copy engine leaves out what lies outside."""
    out = gl.convert_layout(out.to(out_boxes.dtype), _GATED)
    # What was stored before has left shared memory.
    tma.store_wait(0)
    gl.thread_barrier()
    staging.store(out)
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(out_boxes, [first_row, first_out], staging)


@gluon.jit
def _part_at(parts_ptr, part):
    """Where sums lie: 8 by 8 of them, which a warp has in one register of each thread, together."""
    rows = gl.arange(0, _HALF, gl.SliceLayout(1, _SUMS))
    outs = gl.arange(0, 2 * _OUTS, gl.SliceLayout(0, _SUMS))
    at_row = rows // 8 * (8 * 2 * _OUTS) + rows % 8 * 8
    at_out = outs // 8 * 64 + outs % 8
    return parts_ptr + part * (_HALF * 2 * _OUTS) + at_row[:, None] + at_out[None, :]


@gluon.jit
def _leave(acc, parts_ptr, flags_ptr, part):
    """Leaves sums in scratch memory for the program that has the tile's end."""
    gl.store(_part_at(parts_ptr, part), acc)
    gl.thread_barrier()
    gl.atomic_xchg(flags_ptr + part, 1, sem="release")


@gluon.jit
def _add_part(acc, parts_ptr, flags_ptr, part):
    """Adds what another program leaves, once it is there."""
    is_there = gl.atomic_add(flags_ptr + part, 0, sem="acquire")
    while is_there == 0:
        is_there = gl.atomic_add(flags_ptr + part, 0, sem="acquire")
    # Another multiprocessor wrote it, which the first cache does not know of.
    acc += gl.load(_part_at(parts_ptr, part), cache_modifier=".cg")
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
    IN: gl.constexpr,
    OUT: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    """A program for each multiprocessor.

    `x`, `weight` and `out` describe boxes of [TILE_ROWS, BOX], [TILE_OUT, BOX] and
    [HALF_ROWS, TILE_OUT] in `LAYOUT`: what lies outside of them arrives as zeros and is not
    stored. Tiles from `num_whole` on are cut among the first `num_sharers` programs, at least as
    many; `parts_ptr` has room for [num_sharers, 2, HALF_ROWS, 2 * TILE_OUT] in float32,
    `flags_ptr` a zero for each half, which is one again at the end.
    """
    gdc_launch_dependents()
    STEPS: gl.constexpr = (IN + _BOX - 1) // _BOX
    COLUMNS: gl.constexpr = (OUT + _OUTS - 1) // _OUTS
    num_tiles = (num_rows + _ROWS - 1) // _ROWS * COLUMNS
    work = _work_of(gl.program_id(0), num_tiles, num_whole, num_sharers, STEPS)
    cut = (num_tiles, num_whole, num_sharers)
    x_halves = gl.allocate_shared_memory(x.dtype, [STAGES * 2, _HALF, _BOX], _LAYOUT)
    x_ring = x_halves._reinterpret(x.dtype, [STAGES, _ROWS, _BOX], _LAYOUT)
    w_halves = gl.allocate_shared_memory(weight.dtype, [STAGES * 2, _OUTS, _BOX], _LAYOUT)
    w_ring = w_halves._reinterpret(weight.dtype, [STAGES, 2 * _OUTS, _BOX], _LAYOUT)
    staging = gl.allocate_shared_memory(out.dtype, [2, _HALF, _OUTS], _LAYOUT)
    is_there = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    is_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(is_there.index(stage), count=1)
        mbarrier.init(is_free.index(stage), count=2)
    to_copy = (x_ring, w_halves, is_there, is_free)
    to_multiply = (x_halves, w_ring, is_there, is_free)
    gl.warp_specialize(
        [
            (_multiply, (
                out, staging.index(0), to_multiply, work, cut, parts_ptr, flags_ptr, num_rows,
                OUT, STEPS, STAGES, GROUP, 0,
            )),
            (_multiply, (
                out, staging.index(1), to_multiply, work, cut, parts_ptr, flags_ptr, num_rows,
                OUT, STEPS, STAGES, GROUP, 1,
            )),
            (_copy, (x, weight, to_copy, work, num_whole, num_rows, OUT, STEPS, STAGES, GROUP)),
        ],
        # Warps, and registers of a thread: sums are half of them.
        [4, 1],
        [232, 40],
    )  # fmt: skip
