"""Root-mean-square normalisation.

`y = x / sqrt(mean(x^2) + eps) * weight` over the last dimension (Zhang and Sennrich, 2019). The
mean is taken in float32; the normalised value is rounded to the dtype before `weight` multiplies.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch import backend_module


@dataclass(frozen=True, slots=True, kw_only=True)
class RMSNormSpec:
    """Size and dtype of a normalisation, fixed when the model is built.

    Attributes:
        hidden_size: Length of the last dimension.
        eps: Added to the mean square.
        dtype: Dtype of input, weight and output.
    """

    hidden_size: int
    eps: float
    dtype: torch.dtype


class RMSNorm(Protocol):
    """The planned `rms_norm`."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, /) -> torch.Tensor:
        """Normalises rows.

        Args:
            x: [..., hidden_size]; two or three dimensions, the last contiguous.
            weight: [hidden_size].

        Returns:
            [..., hidden_size], contiguous, a new tensor.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("native", "torch", "reference"),
    "cuda": ("triton", "torch", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {"": RMSNormSpec(hidden_size=2560, eps=1e-6, dtype=torch.bfloat16)}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_rms_norm(spec: RMSNormSpec, device: torch.device | str, backend: str = "auto") -> RMSNorm:
    """Chooses a back end of `rms_norm` and binds it to a spec and a device.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    return cast(RMSNorm, backend_module("rms_norm", spec, device, backend).plan(spec, device))
