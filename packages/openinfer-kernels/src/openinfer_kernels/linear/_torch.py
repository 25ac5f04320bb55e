"""linear through the library torch calls on this device (cuBLAS on CUDA)."""

import torch
import torch.nn.functional as F

from openinfer_kernels.linear import Linear, LinearSpec


def supports(spec: LinearSpec, device: torch.device) -> str | None:
    """Every spec on every device."""
    return None


def plan(spec: LinearSpec, device: torch.device | str) -> Linear:
    """Binds linear."""

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)

    return linear
