"""A matrix product with a weight stored as [out_features, in_features], without bias."""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels._dispatch import backend_module


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """What is fixed about the product when the model is built.

    Attributes:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        dtype: Of input, weight and output.
    """

    in_features: int
    out_features: int
    dtype: torch.dtype


class Linear(Protocol):
    """A bound `linear`."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, /) -> torch.Tensor:
        """Multiplies rows with a weight, accumulating in float32.

        Args:
            x: [num_tokens, in_features], contiguous.
            weight: [out_features, in_features], contiguous.

        Returns:
            [num_tokens, out_features], a new tensor.
        """
        ...


def plan_linear(spec: LinearSpec, device: torch.device | str, backend: str = "auto") -> Linear:
    """Chooses and binds `linear`.

    Raises:
        BackendUnavailable: The backend cannot run this spec on this device.
    """
    return cast(Linear, backend_module("linear", spec, device, backend).plan(spec, device))
