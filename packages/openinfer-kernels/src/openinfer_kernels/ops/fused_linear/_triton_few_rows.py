"""Launches of the product of 2 to 16 rows (`_triton_few_rows_kernels`)."""

from typing import Any

import torch
import triton

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._family import num_multiprocessors
from openinfer_kernels.gpu._support import TRITON_DTYPES, launches_dependents
from openinfer_kernels.ops.fused_linear import FusedLinearSpec
from openinfer_kernels.ops.fused_linear._triton_few_rows_kernels import few_rows_kernel
from openinfer_kernels.ops.fused_linear._tuning import FewRowsSizes, few_rows_sizes
from openinfer_kernels.ops.linear import PackedWeight

# Compute capabilities of the families that `FEW_ROWS` has sizes for.
_ARCHS = (90, 100)


class FewRowsLauncher:
    """Launches `few_rows_kernel` for up to `row_tile` rows that are normalised already."""

    def __init__(
        self, spec: FusedLinearSpec, row_tile: int, sizes: FewRowsSizes, device: torch.device
    ) -> None:
        """Fixes the grid and the compile-time arguments."""
        has_pdl = launches_dependents(device)
        constexprs = _constexprs(spec, sizes, row_tile)
        num_tiles = triton.cdiv(spec.num_outputs, constexprs["BLOCK_N"])
        num_programs = num_multiprocessors(device) if sizes.is_persistent else num_tiles
        self._grid = (min(num_tiles, num_programs),)
        self._options = {
            **constexprs,
            "num_warps": sizes.num_warps,
            "PDL": has_pdl,
            **({"launch_pdl": True} if has_pdl else {}),
        }

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        residual: torch.Tensor | None,
        out: torch.Tensor,
        /,
    ) -> None:
        """Writes `out` [num_tokens, num_outputs], which may be `residual` itself."""
        kernel: Any = few_rows_kernel
        kernel[self._grid](x, weight[0], residual, out, len(x), **self._options)


def _constexprs(spec: FusedLinearSpec, sizes: FewRowsSizes, row_tile: int) -> dict[str, Any]:
    return {
        "K": spec.linear.in_features,
        "N": spec.num_outputs,
        "BLOCK_M": row_tile,
        "BLOCK_N": sizes.weight_rows // (2 if spec.is_gated else 1),
        "BLOCK_K": sizes.block_k,
        "NUM_PARTS": sizes.num_warps,
        "NUM_STAGES": sizes.num_stages,
        "IS_GATED": spec.is_gated,
        "ADD_RESIDUAL": spec.adds_residual,
    }


def compile_case(spec: FusedLinearSpec, row_tile: int) -> CompileCase | None:
    """Returns the kernel of a product for up to `row_tile` rows, or None if there is none."""
    sizes = few_rows_sizes(spec, row_tile, torch.device("cpu"))
    if sizes is None:
        return None
    name = TRITON_DTYPES[spec.linear.dtype]
    num_in, num_out = spec.linear.in_features, spec.linear.out_features
    return CompileCase(
        name=f"fused_linear-{name}-{num_in}x{num_out}-{row_tile}-rows",
        kernel=few_rows_kernel,
        signature={
            **dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{name}"),
            "residual_ptr": f"*{name}" if spec.adds_residual else None,
            "num_rows": "i32",
        },
        constexprs=_constexprs(spec, sizes, row_tile),
        num_warps=sizes.num_warps,
        num_stages=sizes.num_stages,
        has_pdl=True,
        archs=_ARCHS,
    )
