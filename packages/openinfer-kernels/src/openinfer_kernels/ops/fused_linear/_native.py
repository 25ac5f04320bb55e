"""fused_linear on the CPU in one native call: norm, product, gate and residual."""

import torch

from openinfer_kernels.ops.fused_linear import FusedLinear, FusedLinearSpec
from openinfer_kernels.ops.linear._native import plan_fused
from openinfer_kernels.ops.linear._native import supports as supports_linear

# Rows of two packed panels of 16: gates and ups must both fill whole panels.
_PANEL_PAIR = 32


def supports(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """Returns None if the native kernels run this spec here, else the reason."""
    if spec.is_gated and spec.linear.out_features % _PANEL_PAIR:
        rows = spec.linear.out_features
        return f"gate and up must have a multiple of {_PANEL_PAIR} rows, got {rows}"
    return supports_linear(spec.linear, device)


def plan(spec: FusedLinearSpec, device: torch.device | str) -> FusedLinear:
    """Binds the native kernel to a spec."""
    return plan_fused(
        spec.linear,
        norm_eps=spec.norm_eps,
        is_gated=spec.is_gated,
        adds_residual=spec.adds_residual,
    )
