"""rms_norm as one native call, which rounds where the definition rounds."""

import torch

from openinfer_kernels.native import library, why_not, wrong_tensors
from openinfer_kernels.ops.rms_norm import RMSNorm, RMSNormSpec


def supports(spec: RMSNormSpec, device: torch.device) -> str | None:
    """Returns None if the native kernels run on this device in this dtype, else the reason."""
    return why_not(spec.dtype, device)


def plan(spec: RMSNormSpec, device: torch.device | str) -> RMSNorm:
    """Returns `rms_norm` for a spec and a device."""
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
            raise wrong_tensors("rms_norm", wanted, x=x, weight=weight)
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
