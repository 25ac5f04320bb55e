"""The gated activation of an MLP."""

import torch
from torch import nn

from openinfer_kernels import SiluAndMulSpec, plan_silu_and_mul


class SiluAndMul(nn.Module):
    """The activation of a SwiGLU MLP: silu(gate) * up (Shazeer, 2020)."""

    def __init__(
        self,
        intermediate_size: int,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        backend: str = "auto",
    ) -> None:
        """Plans the op; it has no weight."""
        super().__init__()
        spec = SiluAndMulSpec(intermediate_size=intermediate_size, dtype=dtype)
        self._silu_and_mul = plan_silu_and_mul(spec, device, backend)

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Maps [num_tokens, 2 * intermediate_size], gate then up, to half of the columns."""
        return self._silu_and_mul(gate_up)
