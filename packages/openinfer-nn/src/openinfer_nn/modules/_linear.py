"""The leaves of a model: modules that own their weights and call one planned op.

Weights are allocated, not initialised: `load_weights` fills them, and packs those of products into
the order their backend wants. Nothing here keeps gradients; run under `torch.inference_mode`.
"""

import torch
from torch import nn

from openinfer_kernels import (
    FusedLinearSpec,
    LinearSpec,
    PackedWeight,
    Quantization,
    plan_fused_linear,
)
from openinfer_nn.modules._norm import RMSNorm
from openinfer_nn.modules._parameter import empty_parameter, frozen_parameter


class PackedModule(nn.Module):
    """A product whose weight is filled as checkpoints store it, then packed once for its backend.

    What stands around it in a layer, a norm before it, a gate or an addition behind it, is part of
    it: on a device one kernel does all of that where a step has few rows.

    Attributes:
        weight: [out_features, in_features] until it is packed, then in the backend's order.
        beside: What a backend keeps beside the weight, such as scales, once it is packed.
    """

    def __init__(
        self,
        spec: FusedLinearSpec,
        weight: nn.Parameter,
        *,
        norm: RMSNorm | None = None,
        device: torch.device | str,
        backend: str,
    ) -> None:
        """Plans the product; the weight may be shared, and the norm is another module's."""
        super().__init__()
        self.weight = weight
        self.beside = nn.ParameterList()
        self._linear = plan_fused_linear(spec, device, backend)
        self._spec = spec
        # In a tuple: it is not a part of the product.
        self._norm = (norm,)
        self._packed: PackedWeight | None = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight as it will be packed."""
        return self._spec.linear.weight_bytes

    @property
    def is_packed(self) -> bool:
        """Whether the weight is ready to be multiplied with."""
        return self._packed is not None

    def pack(self) -> None:
        """Packs the weight, which must be filled; the stored form is gone afterwards."""
        assert self._packed is None, "a weight is packed once"
        stored = self.weight.data
        self._packed = self._linear.pack(stored)
        if self._packed[0].data_ptr() != stored.data_ptr():
            # Whoever filled it may still hold views of it.
            stored.untyped_storage().resize_(0)
        self.weight = frozen_parameter(self._packed[0])
        self.beside.extend(frozen_parameter(part) for part in self._packed[1:])

    def _multiply(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert self._packed is not None, "the weight is not packed; load_weights does that"
        (norm,) = self._norm
        weight = None if norm is None else norm.weight
        return self._linear(x, self._packed, weight, residual, out)


class Linear(PackedModule):
    """A matrix product without bias."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        norm: RMSNorm | None = None,
        is_gated: bool = False,
        adds_residual: bool = False,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: Quantization | None = None,
        backend: str = "auto",
    ) -> None:
        """Allocates the weight, [out_features, in_features], and plans the product.

        Args:
            in_features: Columns of the weight.
            out_features: Rows of the weight.
            norm: What normalises the rows first; None for nothing.
            is_gated: Whether the first half of the product gates the second: silu(gate) * up.
            adds_residual: Whether the result is added to a residual stream.
            device: Where the weight lies.
            dtype: Of stored weight and rows.
            quantization: Of the weight.
            backend: Of `fused_linear`.
        """
        linear = LinearSpec(
            in_features=in_features,
            out_features=out_features,
            dtype=dtype,
            quantization=quantization,
        )
        spec = FusedLinearSpec(
            linear=linear,
            norm_eps=None if norm is None else norm.eps,
            is_gated=is_gated,
            adds_residual=adds_residual,
        )
        weight = empty_parameter((out_features, in_features), device=device, dtype=dtype)
        super().__init__(spec, weight, norm=norm, device=device, backend=backend)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Maps [num_tokens, in_features] to [num_tokens, out_features], half of it if gated.

        Args:
            x: Left as it is.
            residual: The stream, if the product adds to one; it is consumed.
        """
        return self._multiply(x, residual)


class MergedLinear(Linear):
    """Several products of the same input as one, their weights stacked by rows."""

    def __init__(
        self,
        in_features: int,
        out_features: tuple[int, ...],
        *,
        norm: RMSNorm | None = None,
        is_gated: bool = False,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: Quantization | None = None,
        backend: str = "auto",
    ) -> None:
        """Allocates one weight of sum(out_features) rows; arguments as of `Linear`."""
        super().__init__(
            in_features,
            sum(out_features),
            norm=norm,
            is_gated=is_gated,
            device=device,
            dtype=dtype,
            quantization=quantization,
            backend=backend,
        )
        self.out_features = out_features

    def parts(self) -> tuple[torch.Tensor, ...]:
        """Returns the rows of each product, views of `weight`: what a checkpoint stores apart.

        Before the weight is packed.
        """
        assert not self.is_packed, "a packed weight has no rows to fill"
        return torch.split(self.weight, list(self.out_features))


class QKVLinear(MergedLinear):
    """The query, key and value projections of an attention as one product."""

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norm: RMSNorm | None = None,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: Quantization | None = None,
        backend: str = "auto",
    ) -> None:
        """Allocates (num_heads + 2 * num_kv_heads) * head_dim rows; the rest as of `Linear`."""
        heads = (num_heads, num_kv_heads, num_kv_heads)
        rows = tuple(n * head_dim for n in heads)
        super().__init__(
            hidden_size,
            rows,
            norm=norm,
            device=device,
            dtype=dtype,
            quantization=quantization,
            backend=backend,
        )
        self.heads = heads
        self.head_dim = head_dim

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Projects [num_tokens, hidden_size] to queries, keys and values of every head.

        Returns:
            [num_tokens, num_heads + 2 * num_kv_heads, head_dim].
        """
        return self(x).view(x.shape[0], sum(self.heads), self.head_dim)  # type: ignore[no-any-return]
