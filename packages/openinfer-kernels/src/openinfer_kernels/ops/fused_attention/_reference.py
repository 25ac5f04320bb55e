"""The definition of fused_attention: the definitions of its parts, one after another."""

import torch

from openinfer_kernels.ops.fused_attention import FusedAttention, FusedAttentionSpec
from openinfer_kernels.ops.fused_attention._composed import plan as plan_composed


def plan(spec: FusedAttentionSpec, device: torch.device | str) -> FusedAttention:
    """Binds the definitions of the parts."""
    return plan_composed(spec, device, backend="reference")
