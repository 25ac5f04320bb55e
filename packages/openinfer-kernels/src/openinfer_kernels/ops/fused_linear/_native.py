"""fused_linear in one native call: a norm before the product, gate and residual where sums end."""

import torch

from openinfer_kernels.ops.fused_linear import FusedLinear, FusedLinearSpec
from openinfer_kernels.ops.linear._native import plan_fused
from openinfer_kernels.ops.linear._native import supports as supports_linear

_PANEL_PAIR = 32  # output rows: gate and up begin with a panel of their own


def supports(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """What `linear` supports natively; gates of whole panels."""
    if spec.is_gated and spec.linear.out_features % _PANEL_PAIR:
        rows = spec.linear.out_features
        return f"takes a multiple of {_PANEL_PAIR} rows of gate and up, got {rows}"
    return supports_linear(spec.linear, device)


def plan(spec: FusedLinearSpec, device: torch.device | str) -> FusedLinear:
    """Binds fused_linear."""
    return plan_fused(
        spec.linear,
        norm_eps=spec.norm_eps,
        is_gated=spec.is_gated,
        adds_residual=spec.adds_residual,
    )
