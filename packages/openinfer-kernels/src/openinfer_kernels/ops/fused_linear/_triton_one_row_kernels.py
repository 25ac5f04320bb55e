"""The kernel of fused_linear for one row: norm, product, gate and residual, by multiply-adds.

Weights do not depend on the previous kernel. With programmatic dependent launch (PDL, sm_90 and
later), the first tiles of weights are loaded before the program waits for that kernel; nothing else
is read before the wait.
"""

# Kernel arguments are Triton's values, which have no Python types; its tuples grow.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment, no-warn-unreachable
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from openinfer_kernels.ops.fused_linear._triton_functions import weight_offsets, weight_tile


@triton.jit
def _sum_eights(products):
    """Sums the 8 columns that a thread loads at a time. Rows are summed after the last tile."""
    return tl.sum(products.reshape(products.shape[0], products.shape[1] // 8, 8), axis=2)


@triton.jit
def one_row_kernel(
    x_ptr, weight_ptr, norm_ptr, residual_ptr, out_ptr, eps,
    K: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    DEPTH: tl.constexpr, HAS_NORM: tl.constexpr, IS_GATED: tl.constexpr, ADD_RESIDUAL: tl.constexpr,
    LAUNCH_LATE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Computes BLOCK_N outputs of one row: program (tile of outputs).

    `x_ptr` and `norm_ptr` are [K], `residual_ptr` and `out_ptr` [N]. `weight_ptr` is [N, K], or
    [2 * N, K] with the gates first if IS_GATED. DEPTH tiles of [BLOCK_N, BLOCK_K] are in flight.
    The norm is applied around the product: inputs are multiplied by the norm's weight, and the
    result by 1 / rms, which is known after the last tile. LAUNCH_LATE: see `OneRowSizes.is_late`.
    """
    if PDL and not LAUNCH_LATE:
        gdc_launch_dependents()
    NUM_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    NUM_EARLY: tl.constexpr = DEPTH if DEPTH < NUM_TILES else NUM_TILES
    first = tl.program_id(0) * BLOCK_N
    cols = tl.arange(0, BLOCK_K)
    offsets = weight_offsets(K, N, BLOCK_N, BLOCK_K, BLOCK_N)
    up_ptr = weight_ptr + N * K
    tiles = ()
    ups = ()
    for early in tl.static_range(NUM_EARLY):
        at = early * BLOCK_K
        tiles += (weight_tile(weight_ptr, offsets, first, at, K, N, BLOCK_N, BLOCK_K),)
        if IS_GATED:
            ups += (weight_tile(up_ptr, offsets, first, at, K, N, BLOCK_N, BLOCK_K),)
    if PDL:
        gdc_wait()
    acc = tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32)
    up_acc = tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32)
    squares = tl.zeros([1, BLOCK_K // 8], tl.float32)
    for step in tl.static_range(NUM_TILES):
        at = step * BLOCK_K + cols
        x = tl.load(x_ptr + at, mask=at < K, other=0.0).to(tl.float32)
        if HAS_NORM:
            squares += _sum_eights((x * x)[None, :])
            x *= tl.load(norm_ptr + at, mask=at < K, other=0.0).to(tl.float32)
        if step + DEPTH < NUM_TILES:
            ahead = (step + DEPTH) * BLOCK_K
            tiles += (weight_tile(weight_ptr, offsets, first, ahead, K, N, BLOCK_N, BLOCK_K),)
            if IS_GATED:
                ups += (weight_tile(up_ptr, offsets, first, ahead, K, N, BLOCK_N, BLOCK_K),)
        acc += _sum_eights(tiles[step].to(tl.float32) * x[None, :])
        if IS_GATED:
            up_acc += _sum_eights(ups[step].to(tl.float32) * x[None, :])
    if PDL and LAUNCH_LATE:
        gdc_launch_dependents()
    out = tl.sum(acc, axis=1)
    up = tl.sum(up_acc, axis=1)
    if HAS_NORM:
        scale = 1.0 / tl.sqrt(tl.sum(squares, axis=1) / K + eps)
        out *= scale
        up *= scale
    if IS_GATED:
        out = out / (1.0 + tl.exp(-out)) * up
    outs = first + tl.arange(0, BLOCK_N)
    if ADD_RESIDUAL:
        out += tl.load(residual_ptr + outs, mask=outs < N, other=0.0).to(tl.float32)
    tl.store(out_ptr + outs, out.to(out_ptr.dtype.element_ty), mask=outs < N)
