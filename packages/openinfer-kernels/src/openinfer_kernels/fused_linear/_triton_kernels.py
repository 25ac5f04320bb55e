"""The kernel of fused_linear: one row, by multiply-adds.

It streams the weight once and keeps everything else on the chip. Weights do not depend on the
kernel before, so the first tile is on its way before a program waits for that kernel (programmatic
dependent launch, sm_90 and later); nothing else is read before the wait. The norm moves behind the
product: the row is scaled by the norm's weight going in and by 1 / rms coming out.
"""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _weight_tile(tile_ptr, rows, cols, IN: tl.constexpr, OUT: tl.constexpr):
    # `tile_ptr` points to column 0 of the first row. Read once a step, so first to leave the cache.
    mask = (rows < OUT)[:, None] & (cols < IN)[None, :]
    offsets = tl.arange(0, rows.shape[0])[:, None] * IN + cols[None, :]
    return tl.load(tile_ptr + offsets, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def gemv_kernel(
    x_ptr, weight_ptr, norm_ptr, residual_ptr, out_ptr, eps,
    IN: tl.constexpr, OUT: tl.constexpr, TILE_OUT: tl.constexpr, TILE_IN: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Program (TILE_OUT outputs) of one row. Gate and up rows lie OUT apart.
    if PDL:
        gdc_launch_dependents()
    NUM: tl.constexpr = (IN + TILE_IN - 1) // TILE_IN
    first = tl.program_id(0) * TILE_OUT
    rows = first + tl.arange(0, TILE_OUT)
    cols = tl.arange(0, TILE_IN)
    tile_ptr = weight_ptr + first.to(tl.int64) * IN
    weight = _weight_tile(tile_ptr, rows, cols, IN, OUT)
    if GATED:
        up_ptr = tile_ptr + OUT * IN
        up_weight = _weight_tile(up_ptr, rows, cols, IN, OUT)
    if PDL:
        gdc_wait()
    acc = tl.zeros([TILE_OUT, TILE_IN], tl.float32)
    up_acc = tl.zeros([TILE_OUT, TILE_IN], tl.float32)
    squares = tl.zeros([TILE_IN], tl.float32)
    for step in tl.static_range(NUM):
        at = step * TILE_IN + cols
        x = tl.load(x_ptr + at, mask=at < IN, other=0.0).to(tl.float32)
        if NORM:
            squares += x * x
            x *= tl.load(norm_ptr + at, mask=at < IN, other=0.0).to(tl.float32)
        if step + 1 < NUM:
            next_weight = _weight_tile(tile_ptr, rows, at + TILE_IN, IN, OUT)
        acc += weight.to(tl.float32) * x[None, :]
        if step + 1 < NUM:
            weight = next_weight
        if GATED:
            if step + 1 < NUM:
                next_up = _weight_tile(up_ptr, rows, at + TILE_IN, IN, OUT)
            up_acc += up_weight.to(tl.float32) * x[None, :]
            if step + 1 < NUM:
                up_weight = next_up
    out = tl.sum(acc, axis=1)
    up = tl.sum(up_acc, axis=1)
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / IN + eps)
        out *= scale
        up *= scale
    if GATED:
        out = out / (1.0 + tl.exp(-out)) * up
    if ADD:
        out += tl.load(residual_ptr + rows, mask=rows < OUT, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows, out.to(out_ptr.dtype.element_ty), mask=rows < OUT)
