"""The definition of rms_norm."""

import torch

from openinfer_kernels.ops.rms_norm import RMSNorm, RMSNormSpec


def plan(spec: RMSNormSpec, device: torch.device | str) -> RMSNorm:
    """Returns `rms_norm` for a spec and a device."""

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean_square = x.float().pow(2).mean(dim=-1, keepdim=True)
        return (x.float() * torch.rsqrt(mean_square + spec.eps)).to(spec.dtype) * weight

    return rms_norm
