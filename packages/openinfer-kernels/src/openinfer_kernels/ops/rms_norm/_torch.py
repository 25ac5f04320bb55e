"""rms_norm by torch's operator, on any device."""

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.rms_norm import RMSNorm, RMSNormSpec


def plan(spec: RMSNormSpec, device: torch.device | str) -> RMSNorm:
    """Returns `rms_norm` for a spec and a device."""
    shape, eps = (spec.hidden_size,), spec.eps

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, shape, weight, eps)

    return rms_norm
