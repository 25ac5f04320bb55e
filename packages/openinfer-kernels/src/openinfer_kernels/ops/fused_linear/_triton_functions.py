"""Device functions that load weights, for the Triton kernels of fused_linear."""

# Kernel arguments are Triton's values, which have no Python types; its tuples grow.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment, no-warn-unreachable
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl


@triton.jit
def weight_offsets(
    K: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    WEIGHT_ROWS: tl.constexpr,
):  # fmt: skip
    """Returns the offsets of a tile of weights from its first element: [WEIGHT_ROWS, BLOCK_K].

    The weight is [rows, K]. Rows of gates and ups are N apart. If both are in one tile, the BLOCK_N
    gates come first.
    """
    rows = tl.arange(0, WEIGHT_ROWS)
    weight_rows = rows % BLOCK_N + rows // BLOCK_N * N if WEIGHT_ROWS > BLOCK_N else rows
    return weight_rows[:, None] * K + tl.arange(0, BLOCK_K)[None, :]


@triton.jit
def weight_tile(
    weight_ptr, offsets, first_out, first_in, K: tl.constexpr, N: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Loads a tile of weights; 0 outside of the weight.

    Weights are read once per step, so they are the first to leave the L2 cache.
    """
    tile_ptr = weight_ptr + (first_out.to(tl.int64) * K + first_in)
    if K % BLOCK_K == 0 and N % BLOCK_N == 0:
        weight = tl.load(tile_ptr + offsets, eviction_policy="evict_first")
    else:
        n = first_out + tl.arange(0, offsets.shape[0]) % BLOCK_N
        k = first_in + tl.arange(0, BLOCK_K)
        mask = (n < N)[:, None] & (k < K)[None, :]
        weight = tl.load(tile_ptr + offsets, mask=mask, other=0.0, eviction_policy="evict_first")
    return weight
