"""The kernel of fused_linear for 2 to 16 rows, on tensor cores.

The weight is streamed once through a ring of asynchronous copies; all rows are multiplied with each
tile. Weights do not depend on the previous kernel. With programmatic dependent launch (PDL, sm_90
and later), the first tiles of weights are loaded before the program waits for that kernel;
nothing else is read before the wait.
"""

# Kernel arguments are Triton's values, which have no Python types; its tuples grow.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment, no-warn-unreachable
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from openinfer_kernels.ops.fused_linear._triton_functions import weight_offsets, weight_tile


@tl.core.extern
def _wait_for_rows(step, _semantic=None):
    """Waits for the previous kernel and returns 0.

    It is declared free of side effects, so that the compiler may move it before a pipelined load
    whose address depends on its result.
    """
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
    """Sums the warps' parts: [NUM_PARTS, weight rows, rows] to [weight rows, rows].

    Halving takes one exchange between warps each; a reduction would take a chain of them.
    """
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
    K: tl.constexpr, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, NUM_PARTS: tl.constexpr, NUM_STAGES: tl.constexpr,
    IS_GATED: tl.constexpr, ADD_RESIDUAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Computes tiles of BLOCK_N outputs for up to BLOCK_M rows.

    Program p has every num_programs-th tile from p on. `x_ptr` is [num_rows, K], normalised
    already; `residual_ptr` and `out_ptr` are [num_rows, N]; `weight_ptr` is [N, K], or [2 * N, K]
    with the gates first if IS_GATED. Rows from `num_rows` on are masked. Each of the NUM_PARTS
    warps multiplies its part of the BLOCK_K inputs. One loop goes over all inputs of all tiles, so
    that copies of the next tile are in flight while one ends.
    """
    if PDL:
        gdc_launch_dependents()
    WEIGHT_ROWS: tl.constexpr = BLOCK_N * (2 if IS_GATED else 1)
    PART_K: tl.constexpr = BLOCK_K // NUM_PARTS
    NUM_K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    NUM_N_TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    first_tile = tl.program_id(0)
    num_programs = tl.num_programs(0)
    num_steps = (NUM_N_TILES - first_tile + num_programs - 1) // num_programs * NUM_K_TILES
    rows = tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_K)
    offsets = weight_offsets(K, N, BLOCK_N, BLOCK_K, WEIGHT_ROWS)
    acc = tl.zeros([NUM_PARTS, WEIGHT_ROWS, BLOCK_M], tl.float32)
    for step in tl.range(num_steps, num_stages=NUM_STAGES):
        first_out = (first_tile + step // NUM_K_TILES * num_programs) * BLOCK_N
        first_in = step % NUM_K_TILES * BLOCK_K
        weight = weight_tile(weight_ptr, offsets, first_out, first_in, K, N, BLOCK_N, BLOCK_K)
        zero = 0
        if PDL:
            zero = _wait_for_rows(step)
            first_in = tl.multiple_of(first_in + zero, 16)
        mask = (rows < num_rows)[:, None]
        if K % BLOCK_K != 0:
            mask = mask & (first_in + cols < K)[None, :]
        x_offsets = rows[:, None] * K + cols[None, :]
        x = tl.load(x_ptr + first_in + x_offsets, mask=mask, other=0.0)
        weight_parts = weight.reshape(WEIGHT_ROWS, NUM_PARTS, PART_K).permute(1, 0, 2)
        x_parts = x.reshape(BLOCK_M, NUM_PARTS, PART_K).permute(1, 2, 0)
        acc = tl.dot(weight_parts, x_parts, acc)
        if step % NUM_K_TILES == NUM_K_TILES - 1:
            out = _sum_parts(acc, NUM_PARTS).T
            if IS_GATED:
                gate, up = tl.split(out.reshape(BLOCK_M, 2, BLOCK_N).permute(0, 2, 1))
                out = gate / (1.0 + tl.exp(-gate)) * up
            outs = first_out + tl.arange(0, BLOCK_N)
            out_mask = (rows < num_rows)[:, None] & (outs < N)[None, :]
            at = rows[:, None] * N + outs[None, :]
            if ADD_RESIDUAL:  # pipelined as well, if one step is a whole product
                out += tl.load(residual_ptr + zero + at, mask=out_mask, other=0.0).to(tl.float32)
            tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=out_mask)
            acc = tl.zeros_like(acc)
