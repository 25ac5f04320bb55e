"""How products of many rows are launched on Hopper, see `_gluon_many_rows_kernels`."""

from typing import Any, NamedTuple

import torch
import triton
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from openinfer_kernels.gpu._support import TRITON_DTYPES, CompileCase, why_not_hopper
from openinfer_kernels.ops.fused_linear import FusedLinearSpec
from openinfer_kernels.ops.fused_linear._gluon_many_rows_kernels import (
    BOX,
    LAYOUT,
    NUM_WARPS,
    TILE_OUT,
    WEIGHT_BOXES,
    many_rows_kernel,
)
from openinfer_kernels.ops.linear import PackedWeight

ROW_TILES = (8, 16, 32, 64)
"""Rows of a step that are multiplied at a time; above the last the library is as fast."""
_FEW_INPUTS = 4096
_MULTIPROCESSORS = 132
_SHARED_BYTES = 227 * 1024
# Half of a multiprocessor's, so that the kernel behind, or the norm, finds room beside a program.
_REGISTERS = 128
# Inputs of a share: with fewer, adding the shares takes longer than is won.
_LEAST_INPUTS = 2048
_LEAST_PROGRAMS = 64
_RESULT_BYTES = 8192


class Cut(NamedTuple):
    """How a product is cut.

    Attributes:
        num_splits: Shares of the inputs.
        num_stages: Depth of the ring of copies.
    """

    num_splits: int
    num_stages: int


def choose_cut(spec: FusedLinearSpec, row_tile: int) -> Cut | None:
    """The cut for up to `row_tile` rows, as found on an H200; None where others are as fast.

    Of up to 16 rows others are faster at gate and up, and of up to 8 at all but long sums.
    A deep ring is worth more than a second program on a multiprocessor: it is what is read while
    the kernel before ends. Only where tiles are more than multiprocessors do two share one.
    """
    linear = spec.linear
    if linear.dtype.itemsize != 2 or linear.in_features % 8:
        return None
    if not spec.adds_residual and spec.norm_eps is None:
        return None
    if row_tile <= 16 and spec.is_gated:
        return None
    if row_tile <= 8 and not (spec.adds_residual and linear.in_features > _FEW_INPUTS):
        return None
    num_tiles = triton.cdiv(spec.num_outputs, TILE_OUT)
    num_splits = min(_MULTIPROCESSORS // num_tiles, linear.in_features // _LEAST_INPUTS)
    num_splits = 1 if spec.is_gated else max(1, num_splits)
    if num_tiles * num_splits < _LEAST_PROGRAMS:
        return None
    num_programs = 1 if num_tiles * num_splits <= _MULTIPROCESSORS else 2
    x_boxes = 1 if spec.is_gated else WEIGHT_BOXES
    stage_bytes = (WEIGHT_BOXES * TILE_OUT + x_boxes * row_tile) * BOX * 2
    # Barriers, what the system takes of each program, and results on their way through it.
    spare_bytes = 2048 + (_RESULT_BYTES if num_splits == 1 else 0)
    num_stages = (_SHARED_BYTES // num_programs - spare_bytes) // stage_bytes
    num_steps = triton.cdiv(linear.in_features, x_boxes * BOX) // num_splits
    return Cut(num_splits, min(num_stages, num_steps))


def why_not_many_rows(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """Returns None if the kernel runs some of this spec's products on this device, or why not."""
    if choose_cut(spec, ROW_TILES[-1]) is None:
        return "other kernels are as fast"
    return why_not_hopper(device)


class ManyRows:
    """The launch for up to `row_tile` rows."""

    def __init__(
        self, spec: FusedLinearSpec, row_tile: int, cut: Cut, device: torch.device
    ) -> None:
        """Binds it."""
        self._row_tile = row_tile
        num_tiles = triton.cdiv(spec.num_outputs, TILE_OUT)
        self._grid = (num_tiles * cut.num_splits,)
        # Zeros, which the kernel leaves as zeros. Graphs keep the address.
        self._counts = torch.zeros(num_tiles, dtype=torch.int32, device=device)
        self._parts_shape = (*self._grid, row_tile, TILE_OUT) if cut.num_splits > 1 else None
        self._options = {
            **constexprs(spec, cut, row_tile),
            "PDL": True,
            "num_warps": NUM_WARPS,
            "maxnreg": _REGISTERS,
            "launch_pdl": True,
        }

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        residual: torch.Tensor | None,
        out: torch.Tensor,
        /,
    ) -> None:
        """Multiplies rows that are normalised already; shares of inputs take memory."""
        parts = None
        if self._parts_shape is not None:
            parts = torch.empty(self._parts_shape, dtype=torch.float32, device=x.device)
        kernel: Any = many_rows_kernel
        kernel[self._grid](
            boxes_of(x, self._row_tile),
            boxes_of(weight[0], TILE_OUT),
            parts,
            self._counts,
            residual,
            out,
            len(x),
            **self._options,
        )


def boxes_of(matrix: torch.Tensor, num_rows: int, num_columns: int = BOX) -> TensorDescriptor:
    """Describes boxes of a contiguous matrix of 16-bit numbers for the copy engine."""
    shape = list(matrix.shape)
    return TensorDescriptor(matrix, shape, [shape[1], 1], [num_rows, num_columns], LAYOUT)


def constexprs(spec: FusedLinearSpec, cut: Cut, row_tile: int) -> dict[str, Any]:
    """Compile-time choices, but PDL."""
    return {
        "IN": spec.linear.in_features,
        "OUT": spec.num_outputs,
        "ROWS": row_tile,
        "SPLITS": cut.num_splits,
        "STAGES": cut.num_stages,
        "GATED": spec.is_gated,
        "ADD": spec.adds_residual,
    }


def compile_case(spec: FusedLinearSpec, row_tile: int) -> CompileCase | None:
    """The kernel for up to `row_tile` rows, if there is one."""
    cut = choose_cut(spec, row_tile)
    if cut is None:
        return None
    name = TRITON_DTYPES[spec.linear.dtype]
    boxes = {
        "x": f"tensordesc<{name}[{row_tile}, {BOX}],{LAYOUT!r}>",
        "weight": f"tensordesc<{name}[{TILE_OUT}, {BOX}],{LAYOUT!r}>",
    }
    scratch = {"parts_ptr": "*fp32" if cut.num_splits > 1 else None, "counts_ptr": "*i32"}
    residual = f"*{name}" if spec.adds_residual else None
    results = {"residual_ptr": residual, "out_ptr": f"*{name}", "num_rows": "i32"}
    linear = spec.linear
    return CompileCase(
        name=f"fused_linear-{name}-{linear.in_features}x{linear.out_features}-{row_tile}-hopper",
        kernel=many_rows_kernel,
        signature={**boxes, **scratch, **results},
        constexprs=constexprs(spec, cut, row_tile),
        num_warps=NUM_WARPS,
        max_registers=_REGISTERS,
        has_pdl=True,
        archs=(90,),
    )
