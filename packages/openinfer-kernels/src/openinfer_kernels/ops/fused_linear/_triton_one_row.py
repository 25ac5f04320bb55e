"""Launches of the product of one row (`_triton_one_row_kernels`)."""

from typing import Any

import torch
import triton

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._support import TRITON_DTYPES, launches_dependents
from openinfer_kernels.ops.fused_linear import FusedLinearSpec
from openinfer_kernels.ops.fused_linear._triton_one_row_kernels import one_row_kernel
from openinfer_kernels.ops.fused_linear._tuning import ONE_ROW, OneRowSizes, first_match
from openinfer_kernels.ops.linear import PackedWeight


class OneRowLauncher:
    """Launches `one_row_kernel`: norm, product, gate and residual in one kernel."""

    def __init__(self, spec: FusedLinearSpec, sizes: OneRowSizes, device: torch.device) -> None:
        """Fixes the grid and the compile-time arguments."""
        has_pdl = launches_dependents(device)
        self._eps = spec.norm_eps or 0.0
        self._grid = (triton.cdiv(spec.num_outputs, sizes.block_n),)
        self._options = {
            **_constexprs(spec, sizes),
            "num_warps": sizes.num_warps,
            "PDL": has_pdl,
            **({"launch_pdl": True} if has_pdl else {}),
        }

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        norm_weight: torch.Tensor | None,
        residual: torch.Tensor | None,
        out: torch.Tensor,
        /,
    ) -> None:
        """Writes `out` [1, num_outputs], which may be `residual` itself."""
        kernel: Any = one_row_kernel
        kernel[self._grid](x, weight[0], norm_weight, residual, out, self._eps, **self._options)


def _constexprs(spec: FusedLinearSpec, sizes: OneRowSizes) -> dict[str, Any]:
    return {
        "K": spec.linear.in_features,
        "N": spec.num_outputs,
        "BLOCK_N": sizes.block_n,
        "BLOCK_K": sizes.block_k,
        "DEPTH": sizes.depth,
        "HAS_NORM": spec.norm_eps is not None,
        "IS_GATED": spec.is_gated,
        "ADD_RESIDUAL": spec.adds_residual,
        "LAUNCH_LATE": sizes.is_late,
    }


def compile_case(spec: FusedLinearSpec) -> CompileCase:
    """Returns the kernel of a product."""
    sizes, name = first_match(ONE_ROW["default"], spec), TRITON_DTYPES[spec.linear.dtype]
    return CompileCase(
        name=f"fused_linear-{name}-{spec.linear.in_features}x{spec.linear.out_features}",
        kernel=one_row_kernel,
        signature={
            **dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{name}"),
            "norm_ptr": None if spec.norm_eps is None else f"*{name}",
            "residual_ptr": f"*{name}" if spec.adds_residual else None,
            "eps": "fp32",
        },
        constexprs=_constexprs(spec, sizes),
        num_warps=sizes.num_warps,
        has_pdl=True,
    )
