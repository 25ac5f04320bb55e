"""linear on the CPU by native kernels: weights in panels of 16 rows, in bf16, int8 or int4.

A call reads the weight once. With few rows of x it reads at the speed of the memory bus; prefills
run at the speed of oneDNN. So one packed copy of the weight serves both.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F

from openinfer_kernels.memory import empty_in_huge_pages
from openinfer_kernels.native import library, why_not, wrong_tensors
from openinfer_kernels.ops.linear import Linear, LinearSpec, PackedWeight
from openinfer_kernels.ops.linear._quantize import (
    GROUP_SIZE,
    dequantize_weight,
    why_not_quantized,
)

_numel = torch.Tensor.numel
_PANEL = 16  # output rows
# Panels packed at a time, which bounds the memory of the copy.
_PANELS_AT_A_TIME = 256


def supports(spec: LinearSpec, device: torch.device) -> str | None:
    """Returns None if the native kernels run here and fit the row's length, else the reason."""
    if spec.quantization is not None:
        reason = why_not_quantized(spec.in_features, spec.quantization)
    else:
        is_odd = spec.in_features % 2
        reason = f"takes rows of an even length, got {spec.in_features}" if is_odd else None
    return reason or why_not(spec.dtype, device)


def plan(spec: LinearSpec, device: torch.device | str) -> Linear:
    """Returns `linear` for a spec and a device."""
    return plan_fused(spec)


def plan_fused(
    spec: LinearSpec,
    *,
    norm_eps: float | None = None,
    is_gated: bool = False,
    adds_residual: bool = False,
) -> "Panels":
    """Binds the product with the norm, gate and residual around it; see `FusedLinearSpec`."""
    kind: type[Panels] = _Bfloat16
    if spec.quantization is not None:
        kind = _Int8 if spec.quantization == "int8" else _Int4
    return kind(spec, norm_eps=norm_eps, is_gated=is_gated, adds_residual=adds_residual)


class Panels(ABC):
    """A product with a weight in panels, optionally with a norm, a gate and a residual."""

    def __init__(
        self, spec: LinearSpec, *, norm_eps: float | None, is_gated: bool, adds_residual: bool
    ) -> None:
        """Binds the kernel of the weight's kind."""
        self._spec = spec
        self._product = getattr(library(), f"linear_{spec.quantization or 'bf16'}")
        self._norm_eps = norm_eps
        self._is_gated = is_gated
        self._adds_residual = adds_residual
        self._num_outputs = spec.out_features // (2 if is_gated else 1)
        # The packed weight and the norm weight that were checked last.
        self._checked: tuple[PackedWeight | None, torch.Tensor | None] = (None, None)
        # Elements of each part of a packed weight; other back ends and shapes have other numbers.
        items = -(-spec.out_features // _PANEL) * _PANEL * spec.in_features
        scales = items // GROUP_SIZE
        self._num_items: tuple[int, ...] = {
            None: (items,),
            "int8": (items, scales),
            "int4": (items // 4, scales),
        }[spec.quantization]

    def __call__(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        /,
        norm_weight: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes the product. A residual is overwritten and returned."""
        if weight is not self._checked[0] or norm_weight is not self._checked[1]:
            self._check_weights(x, weight, norm_weight)
        num_rows = x.size(0)
        if (
            x.dtype is not torch.bfloat16
            or x.dim() != 2
            or x.size(1) != self._spec.in_features
            or not x.is_contiguous()
            or not x.is_cpu
        ):
            raise self._wrong_operands(x, weight)
        if (residual is not None) != self._adds_residual:
            raise ValueError("linear takes a residual if its spec has adds_residual, and only then")
        y = out if residual is None else residual
        if y is None:
            y = torch.empty(num_rows, self._num_outputs, dtype=x.dtype)
        elif (
            y.dtype is not torch.bfloat16
            or y.shape != (num_rows, self._num_outputs)
            or not y.is_contiguous()
            or not y.is_cpu
        ):
            shape = f"[{num_rows}, {self._num_outputs}]"
            name = "out" if residual is None else "residual"
            raise wrong_tensors("linear", f"a tensor {shape} in bf16, contiguous", **{name: y})
        failed = self._product(
            y.data_ptr(),
            x.data_ptr(),
            weight[0].data_ptr(),
            weight[1].data_ptr() if len(weight) > 1 else None,
            None if norm_weight is None else norm_weight.data_ptr(),
            None if residual is None else y.data_ptr(),
            num_rows,
            self._spec.out_features,
            self._spec.in_features,
            self._is_gated,
            self._norm_eps or 0.0,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the normalised rows of a product")
        return y

    @abstractmethod
    def pack(self, weight: torch.Tensor, /) -> PackedWeight:
        """Packs a stored weight, see `Linear.pack`."""

    @abstractmethod
    def rows(self, weight: PackedWeight, index: torch.Tensor, /) -> torch.Tensor:
        """Returns rows of the weight, see `Linear.rows`."""

    def _check_weights(
        self, x: torch.Tensor, weight: PackedWeight, norm_weight: torch.Tensor | None
    ) -> None:
        """Checks the weights of a call, unless they are the tensors of the last call."""
        if tuple(map(_numel, weight)) != self._num_items or not all(w.is_cpu for w in weight):
            raise self._wrong_operands(x, weight)
        if (norm_weight is None) != (self._norm_eps is None):
            raise ValueError("linear takes a norm_weight if its spec has norm_eps, and only then")
        if norm_weight is not None and (
            norm_weight.dtype is not torch.bfloat16
            or norm_weight.shape != (self._spec.in_features,)
            or not norm_weight.is_contiguous()
            or not norm_weight.is_cpu
        ):
            wanted = f"a norm_weight [{self._spec.in_features}] in bf16, contiguous"
            raise wrong_tensors("linear", wanted, norm_weight=norm_weight)
        self._checked = (weight, norm_weight)

    def _wrong_operands(self, x: torch.Tensor, weight: PackedWeight) -> ValueError:
        shape = f"[num_tokens, {self._spec.in_features}]"
        wanted = f"x {shape} in bf16, contiguous, and a weight that it has packed"
        parts = {f"packed_{index}": part for index, part in enumerate(weight)}
        return wrong_tensors("linear", wanted, x=x, **parts)

    def _check_stored(self, weight: torch.Tensor) -> None:
        shape = (self._spec.out_features, self._spec.in_features)
        if (
            weight.dtype is not torch.bfloat16
            or weight.shape != shape
            or not weight.is_contiguous()
            or not weight.is_cpu
        ):
            raise wrong_tensors(
                "linear", f"a weight {list(shape)} in bf16, contiguous", weight=weight
            )


class _Bfloat16(Panels):
    """Packed weights: ([panels * 16, in_features],), ordered [panels, in_features / 2, 16, 2]."""

    def pack(self, weight: torch.Tensor, /) -> PackedWeight:
        """Packs in place if the rows fill their panels: a panel keeps its bytes' place."""
        self._check_stored(weight)
        weight = _padded(weight)
        ordered = self._ordered(weight)
        stored = weight.view(-1, _PANEL, self._spec.in_features // 2, 2)
        for source, target in zip(
            torch.split(stored, _PANELS_AT_A_TIME),
            torch.split(ordered, _PANELS_AT_A_TIME),
            strict=True,
        ):
            # Rows of one pair have the same order in both; they need the copy as well.
            target.copy_(source.transpose(1, 2).clone(memory_format=torch.contiguous_format))
        return (weight,)

    def rows(self, weight: PackedWeight, index: torch.Tensor, /) -> torch.Tensor:
        return self._ordered(weight[0])[index // _PANEL, :, index % _PANEL].flatten(1)

    def _ordered(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.view(-1, self._spec.in_features // 2, _PANEL, 2)


class _Quantized(Panels):
    """Packed weights: q in the order of panels, and scales [panels, groups, 16]."""

    def pack(self, weight: torch.Tensor, /) -> PackedWeight:
        self._check_stored(weight)
        quantize = getattr(library(), f"quantize_{self._spec.quantization}")
        num_panels = -(-self._spec.out_features // _PANEL)
        q = empty_in_huge_pages((num_panels, *self._panel_shape()), self._q_dtype)
        num_groups = self._spec.in_features // GROUP_SIZE
        scales = empty_in_huge_pages((num_panels, num_groups, _PANEL), torch.bfloat16)
        quantize(
            q.data_ptr(),
            scales.data_ptr(),
            weight.data_ptr(),
            self._spec.out_features,
            self._spec.in_features,
            torch.get_num_threads(),
        )
        return q, scales

    def rows(self, weight: PackedWeight, index: torch.Tensor, /) -> torch.Tensor:
        panel, row = index // _PANEL, index % _PANEL
        q = self._restore(weight[0][panel, :, row])
        return dequantize_weight(q, weight[1][panel, :, row]).to(self._spec.dtype)

    _q_dtype: torch.dtype

    @abstractmethod
    def _panel_shape(self) -> tuple[int, ...]:
        """Returns the shape of one panel of q (16 output rows)."""

    @abstractmethod
    def _restore(self, items: torch.Tensor) -> torch.Tensor:
        """Unpacks one row of each of n panels to [n, in_features], int8."""


class _Int8(_Quantized):
    """Weights in 8 bits; q is [panels, in_features / 2, 16, 2], int8."""

    _q_dtype = torch.int8

    def _panel_shape(self) -> tuple[int, ...]:
        return self._spec.in_features // 2, _PANEL, 2

    def _restore(self, items: torch.Tensor) -> torch.Tensor:
        return items.flatten(1)


class _Int4(_Quantized):
    """Weights in 4 bits; q is [panels, in_features / 8, 16, 2], int16.

    Nibble j of word p is column 2 j + p, plus 8.
    """

    _q_dtype = torch.int16

    def _panel_shape(self) -> tuple[int, ...]:
        return self._spec.in_features // 8, _PANEL, 2

    def _restore(self, items: torch.Tensor) -> torch.Tensor:
        nibbles = torch.stack([items >> 4 * j & 15 for j in range(4)], dim=2)  # [n, K / 8, 4, 2]
        return (nibbles.flatten(1) - 8).to(torch.int8)


def _padded(weight: torch.Tensor) -> torch.Tensor:
    missing = -weight.shape[0] % _PANEL
    return F.pad(weight, (0, 0, 0, missing)) if missing else weight
