"""A matrix product with a weight stored as [out_features, in_features], without bias.

A back end may need the weight in another order or in fewer bits. It packs the stored weight once,
when the weight is loaded, and multiplies with the packed weight.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch

from openinfer_kernels.dispatch import backend_module
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
"""A weight in the order of the back end that packed it; only that back end reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """Shape and dtypes of a matrix product, fixed when the model is built.

    Attributes:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        dtype: Dtype of input, stored weight and output.
        quantization: Format of the packed weight, see `quantize_weight`; None keeps the dtype.
        is_looked_up: Whether `rows` is called; some back ends keep a second copy for it.
    """

    in_features: int
    out_features: int
    dtype: torch.dtype
    quantization: Quantization | None = None
    is_looked_up: bool = False

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weight and its scales, without additions of a back end."""
        numel = self.in_features * self.out_features
        if self.quantization is None:
            return numel * self.dtype.itemsize
        scales = numel // GROUP_SIZE * 2
        return scales + (numel if self.quantization == "int8" else numel // 2)


class Linear(Protocol):
    """The planned `linear`."""

    def pack(self, weight: torch.Tensor, /) -> PackedWeight:
        """Packs a stored weight in the back end's order.

        Args:
            weight: [out_features, in_features], contiguous. It is consumed: a back end may
                return it unchanged, or overwrite it.
        """
        ...

    def __call__(self, x: torch.Tensor, weight: PackedWeight, /) -> torch.Tensor:
        """Multiplies rows with a weight. Sums are float32.

        Args:
            x: [num_tokens, in_features], contiguous.
            weight: The packed weight.

        Returns:
            [num_tokens, out_features], a new tensor.
        """
        ...

    def rows(self, weight: PackedWeight, index: torch.Tensor, /) -> torch.Tensor:
        """Returns rows of the weight: a head that is tied to the embedding is its table.

        Only for a spec with `is_looked_up`.

        Args:
            weight: The packed weight.
            index: [n], int64, each below out_features.

        Returns:
            [n, in_features] in the dtype, a new tensor.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    # Not the reference: a product with a quantized weight would take seconds.
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
    """Chooses a back end of `linear` and binds it to a spec and a device.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    return cast(Linear, backend_module("linear", spec, device, backend).plan(spec, device))
