"""The definition of linear."""

import torch

from openinfer_kernels.ops.linear import Linear, LinearSpec, PackedWeight
from openinfer_kernels.ops.linear._quantize import why_not_quantized
from openinfer_kernels.ops.linear._stored import StoredWeights


def supports(spec: LinearSpec, device: torch.device) -> str | None:
    """Returns None for weights in the dtype, and on a CPU for quantized ones; else the reason."""
    if spec.quantization is None:
        return None
    if device.type != "cpu":
        return f"{spec.quantization} weights are not on {device.type} yet"
    return why_not_quantized(spec.in_features, spec.quantization)


def plan(spec: LinearSpec, device: torch.device | str) -> Linear:
    """Returns `linear` for a spec and a device."""
    return _Reference(spec)


class _Reference(StoredWeights):
    def __call__(self, x: torch.Tensor, weight: PackedWeight, /) -> torch.Tensor:
        return (x.float() @ self.dense(weight).float().T).to(x.dtype)
