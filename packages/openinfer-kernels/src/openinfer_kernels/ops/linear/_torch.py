"""linear by the library that torch calls on the device, which is cuBLAS on CUDA."""

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.linear import Linear, LinearSpec, PackedWeight
from openinfer_kernels.ops.linear._stored import StoredWeights


def supports(spec: LinearSpec, device: torch.device) -> str | None:
    """Returns None for weights in the dtype, else the reason."""
    if spec.quantization is None:
        return None
    return f"has no product with {spec.quantization} weights"


def plan(spec: LinearSpec, device: torch.device | str) -> Linear:
    """Returns `linear` for a spec and a device."""
    return _Torch(spec)


class _Torch(StoredWeights):
    def __call__(self, x: torch.Tensor, weight: PackedWeight, /) -> torch.Tensor:
        return F.linear(x, weight[0])
