"""Launches of the product of up to 64 rows on Hopper (`_gluon_many_rows_kernels`)."""

from typing import Any

import torch
import triton

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._support import TRITON_DTYPES
from openinfer_kernels.ops.fused_linear import FusedLinearSpec
from openinfer_kernels.ops.fused_linear._gluon_boxes import LAYOUT, boxes_of
from openinfer_kernels.ops.fused_linear._gluon_many_rows_kernels import (
    NUM_WARPS,
    many_rows_kernel,
)
from openinfer_kernels.ops.fused_linear._tuning import (
    BOX,
    H200_MULTIPROCESSORS,
    MANY_ROWS,
    MANY_ROWS_BLOCK_N,
    ManyRowsCut,
    many_rows_cut,
)
from openinfer_kernels.ops.linear import PackedWeight


class ManyRowsLauncher:
    """Launches `many_rows_kernel` for up to `row_tile` rows that are normalised already."""

    def __init__(
        self, spec: FusedLinearSpec, row_tile: int, cut: ManyRowsCut, device: torch.device
    ) -> None:
        """Fixes the grid and the compile-time arguments, and allocates the split counters."""
        self._row_tile = row_tile
        num_tiles = triton.cdiv(spec.num_outputs, MANY_ROWS_BLOCK_N)
        self._grid = (num_tiles * cut.num_splits,)
        # Splits that have finished, for each tile. The kernel resets them to 0. Allocated once,
        # because captured graphs keep the address.
        self._counts = torch.zeros(num_tiles, dtype=torch.int32, device=device)
        self._parts_shape = (
            (*self._grid, row_tile, MANY_ROWS_BLOCK_N) if cut.num_splits > 1 else None
        )
        self._options = {
            **_constexprs(spec, cut, row_tile),
            "PDL": True,
            "num_warps": NUM_WARPS,
            "maxnreg": MANY_ROWS["hopper"].max_registers,
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
        """Writes `out`, which may be `residual`. Allocates partial sums where inputs are split."""
        parts = None
        if self._parts_shape is not None:
            parts = torch.empty(self._parts_shape, dtype=torch.float32, device=x.device)
        kernel: Any = many_rows_kernel
        kernel[self._grid](
            boxes_of(x, self._row_tile),
            boxes_of(weight[0], MANY_ROWS_BLOCK_N),
            parts,
            self._counts,
            residual,
            out,
            len(x),
            **self._options,
        )


def _constexprs(spec: FusedLinearSpec, cut: ManyRowsCut, row_tile: int) -> dict[str, Any]:
    return {
        "K": spec.linear.in_features,
        "N": spec.num_outputs,
        "BLOCK_M": row_tile,
        "SPLIT_K": cut.num_splits,
        "NUM_STAGES": cut.num_stages,
        "IS_GATED": spec.is_gated,
        "ADD_RESIDUAL": spec.adds_residual,
    }


def compile_case(spec: FusedLinearSpec, row_tile: int) -> CompileCase | None:
    """Returns the kernel of a product for up to `row_tile` rows, or None if there is none."""
    cut = many_rows_cut(spec, row_tile, H200_MULTIPROCESSORS)
    if cut is None:
        return None
    name = TRITON_DTYPES[spec.linear.dtype]
    boxes = {
        "x": f"tensordesc<{name}[{row_tile}, {BOX}],{LAYOUT!r}>",
        "weight": f"tensordesc<{name}[{MANY_ROWS_BLOCK_N}, {BOX}],{LAYOUT!r}>",
    }
    scratch = {"parts_ptr": "*fp32" if cut.num_splits > 1 else None, "counts_ptr": "*i32"}
    residual = f"*{name}" if spec.adds_residual else None
    results = {"residual_ptr": residual, "out_ptr": f"*{name}", "num_rows": "i32"}
    linear = spec.linear
    return CompileCase(
        name=f"fused_linear-{name}-{linear.in_features}x{linear.out_features}-{row_tile}-hopper",
        kernel=many_rows_kernel,
        signature={**boxes, **scratch, **results},
        constexprs=_constexprs(spec, cut, row_tile),
        num_warps=NUM_WARPS,
        max_registers=MANY_ROWS["hopper"].max_registers,
        has_pdl=True,
        archs=(90,),
    )
