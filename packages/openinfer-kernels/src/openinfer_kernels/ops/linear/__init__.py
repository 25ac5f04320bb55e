"""A matrix product with a weight stored as [out_features, in_features], without bias.

A backend may want the weight in another order, or in fewer bits: it packs the stored weight once,
when it is loaded, and multiplies with what it has packed.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch

from openinfer_kernels.dispatch._choice import backend_module
from openinfer_kernels.ops.linear._quantize import (
    GROUP_SIZE,
    dequantize_weight,
    quantize_weight,
)

__all__ = [
    "Linear",
    "LinearSpec",
    "PackedWeight",
    "Quantization",
    "dequantize_weight",
    "plan_linear",
    "quantize_weight",
]

Quantization = Literal["int8", "int4"]

PackedWeight = tuple[torch.Tensor, ...]
"""A weight in the order of the backend that packed it, and of no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """What is fixed about the product when the model is built.

    Attributes:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        dtype: Of input, stored weight and output.
        quantization: What the weight is kept in, see `quantize_weight`; None keeps the dtype.
        is_looked_up: Whether `rows` is called: some backends keep more for it.
    """

    in_features: int
    out_features: int
    dtype: torch.dtype
    quantization: Quantization | None = None
    is_looked_up: bool = False

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weight and its scales; what a backend adds of its own is left out."""
        numel = self.in_features * self.out_features
        if self.quantization is None:
            return numel * self.dtype.itemsize
        scales = numel // GROUP_SIZE * 2
        return scales + (numel if self.quantization == "int8" else numel // 2)


class Linear(Protocol):
    """A bound `linear`."""

    def pack(self, weight: torch.Tensor, /) -> PackedWeight:
        """Brings a stored weight into the backend's order.

        Args:
            weight: [out_features, in_features], contiguous. It is consumed: a backend may return
                it as it is, or overwrite it.
        """
        ...

    def __call__(self, x: torch.Tensor, weight: PackedWeight, /) -> torch.Tensor:
        """Multiplies rows with a weight, accumulating in float32.

        Args:
            x: [num_tokens, in_features], contiguous.
            weight: What `pack` returned.

        Returns:
            [num_tokens, out_features], a new tensor.
        """
        ...

    def rows(self, weight: PackedWeight, index: torch.Tensor, /) -> torch.Tensor:
        """Looks up rows of the weight: a tied head is the table of the embedding too.

        Only for a spec with `is_looked_up`.

        Args:
            weight: What `pack` returned.
            index: [n], int64, each below out_features.

        Returns:
            [n, in_features] in the dtype, a new tensor.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    # No reference: it computes a product with a quantized weight in seconds.
    "cpu": ("native", "cpu", "torch"),
    "cuda": ("torch", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {
    "": LinearSpec(in_features=2560, out_features=6144, dtype=torch.bfloat16),
    "int8": LinearSpec(
        in_features=2560, out_features=6144, dtype=torch.bfloat16, quantization="int8"
    ),
    "int4": LinearSpec(
        in_features=2560, out_features=6144, dtype=torch.bfloat16, quantization="int4"
    ),
}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_linear(spec: LinearSpec, device: torch.device | str, backend: str = "auto") -> Linear:
    """Chooses and binds `linear`.

    Raises:
        BackendUnavailable: The backend cannot run this spec on this device.
    """
    return cast(Linear, backend_module("linear", spec, device, backend).plan(spec, device))
