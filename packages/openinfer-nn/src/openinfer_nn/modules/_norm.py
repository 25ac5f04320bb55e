"""Root-mean-square normalisation."""

import torch
from torch import nn

from openinfer_kernels import RMSNormSpec, plan_rms_norm
from openinfer_nn.modules._parameter import empty_parameter


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a learned scale.

    Attributes:
        weight: The scale, [hidden_size].
        eps: Added to the mean square.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        eps: float,
        device: torch.device | str,
        dtype: torch.dtype,
        backend: str = "auto",
    ) -> None:
        """Allocates the scale, [hidden_size], and plans the op."""
        super().__init__()
        self.weight = empty_parameter((hidden_size,), device=device, dtype=dtype)
        self.eps = eps
        spec = RMSNormSpec(hidden_size=hidden_size, eps=eps, dtype=dtype)
        self._rms_norm = plan_rms_norm(spec, device, backend)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension of [..., hidden_size]."""
        return self._rms_norm(x, self.weight)
