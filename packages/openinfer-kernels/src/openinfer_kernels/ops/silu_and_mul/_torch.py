"""silu_and_mul by two torch operators; the activation of the gate is rounded between them."""

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.silu_and_mul import SiluAndMul, SiluAndMulSpec


def plan(spec: SiluAndMulSpec, device: torch.device | str) -> SiluAndMul:
    """Returns `silu_and_mul` for a spec and a device."""
    size = spec.intermediate_size

    def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate_up[:, :size]).mul_(gate_up[:, size:])

    return silu_and_mul
