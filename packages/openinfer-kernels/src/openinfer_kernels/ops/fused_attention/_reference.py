"""fused_attention, as defined: the definitions of its parts, one after another."""

import torch

from openinfer_kernels.ops.fused_attention import FusedAttention, FusedAttentionSpec
from openinfer_kernels.ops.fused_attention._composed import plan as plan_composed


def supports(spec: FusedAttentionSpec, device: torch.device) -> str | None:
    """Every spec on every device."""
    return None


def plan(spec: FusedAttentionSpec, device: torch.device | str) -> FusedAttention:
    """Binds fused_attention."""
    return plan_composed(spec, device, backend="reference")
