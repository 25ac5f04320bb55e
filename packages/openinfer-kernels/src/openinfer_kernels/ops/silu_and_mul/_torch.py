"""silu_and_mul through torch's operators: the gate's activation is rounded once in between."""

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.silu_and_mul import SiluAndMul, SiluAndMulSpec


def supports(spec: SiluAndMulSpec, device: torch.device) -> str | None:
    """Every spec on every device."""
    return None


def plan(spec: SiluAndMulSpec, device: torch.device | str) -> SiluAndMul:
    """Binds silu_and_mul."""
    size = spec.intermediate_size

    def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate_up[:, :size]).mul_(gate_up[:, size:])

    return silu_and_mul
