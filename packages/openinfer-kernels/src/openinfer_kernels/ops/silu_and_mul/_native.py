"""silu_and_mul as one native call, which rounds once."""

import torch

from openinfer_kernels.native import library, why_not, wrong_tensors
from openinfer_kernels.ops.silu_and_mul import SiluAndMul, SiluAndMulSpec


def supports(spec: SiluAndMulSpec, device: torch.device) -> str | None:
    """Returns None if the native kernels run on this device in this dtype, else the reason."""
    return why_not(spec.dtype, device)


def plan(spec: SiluAndMulSpec, device: torch.device | str) -> SiluAndMul:
    """Returns `silu_and_mul` for a spec and a device."""
    native, size = library().silu_and_mul, spec.intermediate_size

    def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
        if (
            gate_up.dtype is not torch.bfloat16
            or gate_up.dim() != 2
            or gate_up.size(1) != 2 * size
            or not gate_up.is_contiguous()
            or not gate_up.is_cpu
        ):
            wanted = f"gate_up [num_tokens, {2 * size}] in bf16, contiguous"
            raise wrong_tensors("silu_and_mul", wanted, gate_up=gate_up)
        y = torch.empty(gate_up.shape[0], size, dtype=gate_up.dtype)
        native(y.data_ptr(), gate_up.data_ptr(), gate_up.shape[0], size, torch.get_num_threads())
        return y

    return silu_and_mul
