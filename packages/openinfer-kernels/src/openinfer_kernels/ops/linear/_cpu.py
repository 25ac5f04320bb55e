"""linear on the CPU by torch's operators, for machines without the native kernels.

With one row of x, oneDNN reads a bf16 weight at half the speed of the memory bus, and ATen's own
kernel at nearly full speed. From three rows on, oneDNN is as fast or faster. Measured on AVX-512
with bf16, oneDNN against ATen, a step of a whole model: 288 against 149 ms at one row, 294 against
280 ms at three rows, 367 against 741 ms at eight rows. Weights of 4 bits have an operator of their
own, which is fast for few rows and works for many.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.linear import Linear, LinearSpec, PackedWeight
from openinfer_kernels.ops.linear._quantize import GROUP_SIZE, why_not_quantized
from openinfer_kernels.ops.linear._stored import StoredWeights

_MAX_ROWS_WITHOUT_ONEDNN = 2
_INT4_ROWS = 16  # the operator's blocks of output rows
_PACK_FLAG = 1  # argument of ATen's packing, which CPUs ignore


def supports(spec: LinearSpec, device: torch.device) -> str | None:
    """Returns None for weights in the dtype or in 4 bits on a CPU, else the reason."""
    if device.type != "cpu":
        return f"needs a CPU, this is {device.type}"
    if spec.quantization == "int8":
        return "has no product with int8 weights"
    if spec.quantization == "int4" and spec.out_features % _INT4_ROWS:
        return f"int4 takes a multiple of {_INT4_ROWS} rows, got {spec.out_features}"
    return spec.quantization and why_not_quantized(spec.in_features, spec.quantization)


def plan(spec: LinearSpec, device: torch.device | str) -> Linear:
    """Returns `linear` for a spec and a device.

    Call a bf16 one from one thread, because the oneDNN switch is global to the process.
    """
    if spec.quantization == "int4":
        return _Int4(spec)
    return _Bfloat16(spec) if spec.dtype is torch.bfloat16 else _Dense(spec)


class _Dense(StoredWeights):
    def __call__(self, x: torch.Tensor, weight: PackedWeight, /) -> torch.Tensor:
        return F.linear(x, weight[0])


class _Bfloat16(StoredWeights):
    def __init__(self, spec: LinearSpec) -> None:
        super().__init__(spec)
        # The context manager of torch.backends.mkldnn also sets unrelated flags, warns about one of
        # them, and takes five times as long.
        self._set_flags: Callable[..., tuple[bool, ...]] = torch.backends.mkldnn.set_flags

    def __call__(self, x: torch.Tensor, weight: PackedWeight, /) -> torch.Tensor:
        if x.shape[0] > _MAX_ROWS_WITHOUT_ONEDNN:
            return F.linear(x, weight[0])
        previous = self._set_flags(_enabled=False)
        try:
            return F.linear(x, weight[0])
        finally:
            self._set_flags(_enabled=previous[0])


class _Int4(StoredWeights):
    """Packed weights: ATen's blocks, scales and zeros [k / 32, n, 2]; q, scales if looked up."""

    def pack(self, weight: torch.Tensor, /) -> PackedWeight:
        q, scales = super().pack(weight)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.int() + 8, _PACK_FLAG)
        # The operator computes (q + 8 - 8) * scale + zero.
        pairs = torch.stack((scales, torch.zeros_like(scales)), dim=2).transpose(0, 1)
        kept = (packed, pairs.to(self._spec.dtype).contiguous())
        return (*kept, q, scales) if self._spec.is_looked_up else kept

    def __call__(self, x: torch.Tensor, weight: PackedWeight, /) -> torch.Tensor:
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, weight[0], GROUP_SIZE, weight[1]
        )
        return out

    def rows(self, weight: PackedWeight, index: torch.Tensor, /) -> torch.Tensor:
        return super().rows(weight[2:], index)
