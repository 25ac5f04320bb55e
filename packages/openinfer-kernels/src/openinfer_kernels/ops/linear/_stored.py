"""Weights in plain order, as checkpoints or `quantize_weight` store them: torch's order."""

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.linear import LinearSpec, PackedWeight
from openinfer_kernels.ops.linear._quantize import dequantize_weight, quantize_weight

# Rows quantized at a time, which bounds the memory of float32 intermediates.
_ROWS_AT_A_TIME = 4096


class StoredWeights:
    """Base class with `pack` and `rows` of `Linear` for the plain order."""

    def __init__(self, spec: LinearSpec) -> None:
        self._spec = spec

    def pack(self, weight: torch.Tensor, /) -> PackedWeight:
        """Returns (weight,) unchanged, or (q, scales) of the quantized weight."""
        quantization = self._spec.quantization
        if quantization is None:
            return (weight,)
        parts = [
            quantize_weight(part, quantization) for part in torch.split(weight, _ROWS_AT_A_TIME)
        ]
        return torch.cat([q for q, _ in parts]), torch.cat([scales for _, scales in parts])

    def rows(self, weight: PackedWeight, index: torch.Tensor, /) -> torch.Tensor:
        """Returns rows of the weight, see `Linear.rows`."""
        if self._spec.quantization is None:
            return F.embedding(index, weight[0])
        q, scales = (part.index_select(0, index) for part in weight)
        return dequantize_weight(q, scales).to(self._spec.dtype)

    def dense(self, weight: PackedWeight) -> torch.Tensor:
        """Returns the whole weight: in the dtype, or in float32 if it is quantized."""
        return weight[0] if self._spec.quantization is None else dequantize_weight(*weight)
