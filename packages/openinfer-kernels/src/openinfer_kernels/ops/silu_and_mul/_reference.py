"""The definition of silu_and_mul."""

import torch

from openinfer_kernels.ops.silu_and_mul import SiluAndMul, SiluAndMulSpec


def plan(spec: SiluAndMulSpec, device: torch.device | str) -> SiluAndMul:
    """Returns `silu_and_mul` for a spec and a device."""

    def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (gate * torch.sigmoid(gate) * up).to(spec.dtype)

    return silu_and_mul
