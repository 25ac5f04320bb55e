"""The kernels of fused_linear: one row by multiply-adds, a few rows by the tensor cores.

Both stream the weight once and keep everything else on the chip. Weights do not depend on the
kernel before, so the first tiles are on their way before a program waits for that kernel
(programmatic dependent launch, sm_90 and later); nothing else is read before the wait.
"""

# Kernel arguments are Triton's values, which have no Python types; its tuples grow.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment, no-warn-unreachable
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _weight_offsets(
    IN: tl.constexpr, OUT: tl.constexpr, TILE_OUT: tl.constexpr, TILE_IN: tl.constexpr,
    STORED: tl.constexpr,
):  # fmt: skip
    # [STORED, TILE_IN], from the tile's first output on. Gate and up rows lie OUT apart; where they
    # are one tile, the gate's TILE_OUT come first.
    stored = tl.arange(0, STORED)
    lines = stored % TILE_OUT + stored // TILE_OUT * OUT if STORED > TILE_OUT else stored
    return lines[:, None] * IN + tl.arange(0, TILE_IN)[None, :]


@triton.jit
def _weight_tile(
    weight_ptr, offsets, first_out, first_in, IN: tl.constexpr, OUT: tl.constexpr,
    TILE_OUT: tl.constexpr, TILE_IN: tl.constexpr,
):  # fmt: skip
    # Read once a step, so first to leave the cache.
    tile_ptr = weight_ptr + (first_out.to(tl.int64) * IN + first_in)
    if IN % TILE_IN == 0 and OUT % TILE_OUT == 0:
        weight = tl.load(tile_ptr + offsets, eviction_policy="evict_first")
    else:
        outs = first_out + tl.arange(0, offsets.shape[0]) % TILE_OUT
        cols = first_in + tl.arange(0, TILE_IN)
        mask = (outs < OUT)[:, None] & (cols < IN)[None, :]
        weight = tl.load(tile_ptr + offsets, mask=mask, other=0.0, eviction_policy="evict_first")
    return weight


@triton.jit
def _sum_eights(products):
    # Of columns, over what a thread loads at a time; sums over whole rows wait for the last tile.
    return tl.sum(products.reshape(products.shape[0], products.shape[1] // 8, 8), axis=2)


@triton.jit
def gemv_kernel(
    x_ptr, weight_ptr, norm_ptr, residual_ptr, out_ptr, eps,
    IN: tl.constexpr, OUT: tl.constexpr, TILE_OUT: tl.constexpr, TILE_IN: tl.constexpr,
    DEPTH: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    LATE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Program (TILE_OUT outputs) of one row; DEPTH tiles are on their way. The norm moves behind the
    # product: the row is scaled by the norm's weight going in and by 1 / rms coming out.
    if PDL and not LATE:
        gdc_launch_dependents()
    NUM: tl.constexpr = (IN + TILE_IN - 1) // TILE_IN
    EARLY: tl.constexpr = DEPTH if DEPTH < NUM else NUM
    first = tl.program_id(0) * TILE_OUT
    cols = tl.arange(0, TILE_IN)
    offsets = _weight_offsets(IN, OUT, TILE_OUT, TILE_IN, TILE_OUT)
    up_ptr = weight_ptr + OUT * IN
    tiles = ()
    ups = ()
    for early in tl.static_range(EARLY):
        at = early * TILE_IN
        tiles += (_weight_tile(weight_ptr, offsets, first, at, IN, OUT, TILE_OUT, TILE_IN),)
        if GATED:
            ups += (_weight_tile(up_ptr, offsets, first, at, IN, OUT, TILE_OUT, TILE_IN),)
    if PDL:
        gdc_wait()
    acc = tl.zeros([TILE_OUT, TILE_IN // 8], tl.float32)
    up_acc = tl.zeros([TILE_OUT, TILE_IN // 8], tl.float32)
    squares = tl.zeros([1, TILE_IN // 8], tl.float32)
    for step in tl.static_range(NUM):
        at = step * TILE_IN + cols
        x = tl.load(x_ptr + at, mask=at < IN, other=0.0).to(tl.float32)
        if NORM:
            squares += _sum_eights((x * x)[None, :])
            x *= tl.load(norm_ptr + at, mask=at < IN, other=0.0).to(tl.float32)
        if step + DEPTH < NUM:
            ahead = (step + DEPTH) * TILE_IN
            tiles += (_weight_tile(weight_ptr, offsets, first, ahead, IN, OUT, TILE_OUT, TILE_IN),)
            if GATED:
                ups += (_weight_tile(up_ptr, offsets, first, ahead, IN, OUT, TILE_OUT, TILE_IN),)
        acc += _sum_eights(tiles[step].to(tl.float32) * x[None, :])
        if GATED:
            up_acc += _sum_eights(ups[step].to(tl.float32) * x[None, :])
    if PDL and LATE:
        gdc_launch_dependents()
    out = tl.sum(acc, axis=1)
    up = tl.sum(up_acc, axis=1)
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(squares, axis=1) / IN + eps)
        out *= scale
        up *= scale
    if GATED:
        out = out / (1.0 + tl.exp(-out)) * up
    outs = first + tl.arange(0, TILE_OUT)
    if ADD:
        out += tl.load(residual_ptr + outs, mask=outs < OUT, other=0.0).to(tl.float32)
    tl.store(out_ptr + outs, out.to(out_ptr.dtype.element_ty), mask=outs < OUT)


@tl.core.extern
def _wait_for_rows(step, _semantic=None):
    # Waits for the kernel before and returns 0. It counts as free of effects, so that the compiler
    # may put it in front of a pipelined load whose address depends on its result.
    return tl.core.inline_asm_elementwise(
        "griddepcontrol.wait; mov.b32 $0, 0; // $1",
        "=r,r",
        [step],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
        _semantic=_semantic,
    )


@triton.jit
def _sum_parts(acc, NUM_PARTS: tl.constexpr):
    # [NUM_PARTS, stored, rows] to [stored, rows]. Halved, which takes one exchange between warps; a
    # reduction takes a chain of them.
    out = acc.permute(1, 2, 0)
    if NUM_PARTS == 8:
        low, high = tl.split(out.reshape(out.shape[0], out.shape[1], 4, 2))
        out = low + high
    if NUM_PARTS >= 4:
        low, high = tl.split(out.reshape(out.shape[0], out.shape[1], 2, 2))
        out = low + high
    low, high = tl.split(out)
    return low + high


@triton.jit(do_not_specialize=["num_rows"])
def few_rows_kernel(
    x_ptr, weight_ptr, residual_ptr, out_ptr, num_rows,
    IN: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, TILE_OUT: tl.constexpr,
    TILE_IN: tl.constexpr, NUM_PARTS: tl.constexpr, NUM_STAGES: tl.constexpr,
    GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Program (every num_programs-th tile of TILE_OUT outputs) of up to ROWS rows. Weights and rows
    # go through a ring of asynchronous copies; each warp multiplies a part of the TILE_IN inputs.
    if PDL:
        gdc_launch_dependents()
    STORED: tl.constexpr = TILE_OUT * (2 if GATED else 1)
    PART: tl.constexpr = TILE_IN // NUM_PARTS
    NUM_IN: tl.constexpr = (IN + TILE_IN - 1) // TILE_IN
    NUM_OUT: tl.constexpr = (OUT + TILE_OUT - 1) // TILE_OUT
    first = tl.program_id(0)
    num_programs = tl.num_programs(0)
    num_steps = (NUM_OUT - first + num_programs - 1) // num_programs * NUM_IN
    rows = tl.arange(0, ROWS)
    cols = tl.arange(0, TILE_IN)
    offsets = _weight_offsets(IN, OUT, TILE_OUT, TILE_IN, STORED)
    acc = tl.zeros([NUM_PARTS, STORED, ROWS], tl.float32)
    for step in tl.range(num_steps, num_stages=NUM_STAGES):
        first_out = (first + step // NUM_IN * num_programs) * TILE_OUT
        first_in = step % NUM_IN * TILE_IN
        weight = _weight_tile(weight_ptr, offsets, first_out, first_in, IN, OUT, TILE_OUT, TILE_IN)
        zero = 0
        if PDL:
            zero = _wait_for_rows(step)
            first_in = tl.multiple_of(first_in + zero, 16)
        mask = (rows < num_rows)[:, None]
        if IN % TILE_IN != 0:
            mask = mask & (first_in + cols < IN)[None, :]
        x_offsets = rows[:, None] * IN + cols[None, :]
        x = tl.load(x_ptr + first_in + x_offsets, mask=mask, other=0.0)
        weight_parts = weight.reshape(STORED, NUM_PARTS, PART).permute(1, 0, 2)
        x_parts = x.reshape(ROWS, NUM_PARTS, PART).permute(1, 2, 0)
        acc = tl.dot(weight_parts, x_parts, acc)
        if step % NUM_IN == NUM_IN - 1:
            out = _sum_parts(acc, NUM_PARTS).T
            if GATED:
                gate, up = tl.split(out.reshape(ROWS, 2, TILE_OUT).permute(0, 2, 1))
                out = gate / (1.0 + tl.exp(-gate)) * up
            outs = first_out + tl.arange(0, TILE_OUT)
            out_mask = (rows < num_rows)[:, None] & (outs < OUT)[None, :]
            at = rows[:, None] * OUT + outs[None, :]
            if ADD:  # where one step is a whole product, this load is pipelined, too
                out += tl.load(residual_ptr + zero + at, mask=out_mask, other=0.0).to(tl.float32)
            tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=out_mask)
            acc = tl.zeros_like(acc)
