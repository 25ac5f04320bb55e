"""The gated activation of an MLP: `silu(gate) * up` (Shazeer, 2020: SwiGLU)."""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch import backend_module


@dataclass(frozen=True, slots=True, kw_only=True)
class SiluAndMulSpec:
    """Size and dtype of an activation, fixed when the model is built.

    Attributes:
        intermediate_size: Columns of the gate half, of the up half and of the output.
        dtype: Dtype of input and output.
    """

    intermediate_size: int
    dtype: torch.dtype


class SiluAndMul(Protocol):
    """The planned `silu_and_mul`."""

    def __call__(self, gate_up: torch.Tensor, /) -> torch.Tensor:
        """Applies the activation.

        Args:
            gate_up: [num_tokens, 2 * intermediate_size], contiguous: gate half, then up half.

        Returns:
            [num_tokens, intermediate_size], a new tensor.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("native", "torch", "reference"),
    "cuda": ("triton", "torch", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {"": SiluAndMulSpec(intermediate_size=9728, dtype=torch.bfloat16)}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_silu_and_mul(
    spec: SiluAndMulSpec, device: torch.device | str, backend: str = "auto"
) -> SiluAndMul:
    """Chooses a back end of `silu_and_mul` and binds it to a spec and a device.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    module = backend_module("silu_and_mul", spec, device, backend)
    return cast(SiluAndMul, module.plan(spec, device))
