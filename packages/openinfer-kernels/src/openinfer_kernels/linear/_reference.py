"""linear, as defined."""

import torch

from openinfer_kernels.linear import Linear, LinearSpec


def supports(spec: LinearSpec, device: torch.device) -> str | None:
    """Every spec on every device."""
    return None


def plan(spec: LinearSpec, device: torch.device | str) -> Linear:
    """Binds linear."""

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x.float() @ weight.float().T).to(spec.dtype)

    return linear
