"""rms_norm, as defined."""

import torch

from openinfer_kernels.rms_norm import AddRMSNorm, RMSNorm, RMSNormSpec


def supports(spec: RMSNormSpec, device: torch.device) -> str | None:
    """Every spec on every device."""
    return None


def plan(spec: RMSNormSpec, device: torch.device | str) -> RMSNorm:
    """Binds rms_norm."""

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean_square = x.float().pow(2).mean(dim=-1, keepdim=True)
        return (x.float() * torch.rsqrt(mean_square + spec.eps)).to(spec.dtype) * weight

    return rms_norm


def plan_add(spec: RMSNormSpec, device: torch.device | str) -> AddRMSNorm:
    """Binds add_rms_norm."""
    rms_norm = plan(spec, device)

    def add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return rms_norm(total, weight), total

    return add_rms_norm
