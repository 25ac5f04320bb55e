"""The definition of fused_linear: the definitions of its parts, one after another."""

import torch

from openinfer_kernels.dispatch._choice import why_not
from openinfer_kernels.ops.fused_linear import FusedLinear, FusedLinearSpec
from openinfer_kernels.ops.fused_linear._composed import Composed


def supports(spec: FusedLinearSpec, device: torch.device) -> str | None:
    """Returns None if the definition of `linear` supports this spec, else the reason."""
    return why_not("linear", spec.linear, device, "reference")


def plan(spec: FusedLinearSpec, device: torch.device | str) -> FusedLinear:
    """Binds the definitions of the parts."""
    return Composed(spec, torch.device(device), "reference", "reference")
