"""rms_norm in one native call, rounded where the definition rounds."""

import torch

from openinfer_kernels._native import library, why_not
from openinfer_kernels._native._checks import refused
from openinfer_kernels.rms_norm import AddRMSNorm, RMSNorm, RMSNormSpec


def supports(spec: RMSNormSpec, device: torch.device) -> str | None:
    """bf16 on a CPU with the native kernels."""
    return why_not(spec.dtype, device)


def plan(spec: RMSNormSpec, device: torch.device | str) -> RMSNorm:
    """Binds rms_norm."""
    native, size, eps = library().rms_norm, spec.hidden_size, spec.eps

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        dims = x.dim()
        if (
            x.dtype is not torch.bfloat16
            or weight.dtype is not torch.bfloat16
            or dims not in (2, 3)
            or x.size(-1) != size
            or x.stride(-1) != 1
            or weight.numel() != size
            or not weight.is_contiguous()
            or not (x.is_cpu and weight.is_cpu)
        ):
            wanted = f"rows of {size} and a weight [{size}] in bf16, the last dimension contiguous"
            raise refused("rms_norm", wanted, x=x, weight=weight)
        y = torch.empty(x.shape, dtype=x.dtype)
        heads, head_stride = (1, 0) if dims == 2 else (x.size(1), x.stride(1))
        native(
            y.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            x.shape[0],
            heads,
            x.stride(0),
            head_stride,
            size,
            eps,
            torch.get_num_threads(),
        )
        return y

    return rms_norm


def plan_add(spec: RMSNormSpec, device: torch.device | str) -> AddRMSNorm:
    """Binds add_rms_norm; the sum is written over the residual."""
    native, size, eps = library().add_rms_norm, spec.hidden_size, spec.eps

    def add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = x.shape
        if (
            x.dtype is not torch.bfloat16
            or residual.dtype is not torch.bfloat16
            or weight.dtype is not torch.bfloat16
            or shape[1:] != (size,)
            or residual.shape != shape
            or weight.numel() != size
            or not (x.is_contiguous() and residual.is_contiguous() and weight.is_contiguous())
            or not (x.is_cpu and residual.is_cpu and weight.is_cpu)
        ):
            wanted = (
                f"x and residual [num_tokens, {size}] and a weight [{size}] in bf16, contiguous"
            )
            raise refused("add_rms_norm", wanted, x=x, residual=residual, weight=weight)
        y = torch.empty(shape, dtype=x.dtype)
        native(
            y.data_ptr(),
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            x.shape[0],
            size,
            eps,
            torch.get_num_threads(),
        )
        return y, residual

    return add_rms_norm
