"""Linear layers without bias: one, several with the same input, and those of an attention.

A weight is allocated, not initialised. `load_weights` fills it in the checkpoint's order and then
packs it into the order that its back end wants.
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
from openinfer_nn.modules._parameter import empty_parameter, frozen_parameter


class PackedModule(nn.Module):
    """A linear layer whose weight is filled in the checkpoint's order and then packed once.

    Attributes:
        weight: [out_features, in_features] until it is packed, then in the back end's order.
        packed_extras: Tensors that the back end keeps for the packed weight, such as scales.
        spec: Shape, dtype and quantization of the weight.
        device: Where it runs.
        backend: The back end that was asked for, "auto" for the best one.
    """

    def __init__(
        self,
        spec: LinearSpec,
        weight: nn.Parameter,
        *,
        device: torch.device | str,
        backend: str,
    ) -> None:
        """Plans the matrix product. The weight may be shared with another module."""
        super().__init__()
        self.weight = weight
        self.packed_extras = nn.ParameterList()
        self.spec = spec
        self.device = device
        self.backend = backend
        self._product = plan_fused_linear(FusedLinearSpec(linear=spec), device, backend)
        self._packed: PackedWeight | None = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight once it is packed."""
        return self.spec.weight_bytes

    @property
    def is_packed(self) -> bool:
        """Whether the weight is packed."""
        return self._packed is not None

    @property
    def packed(self) -> PackedWeight:
        """The packed weight, for this layer and for fused ops that contain it."""
        assert self._packed is not None, "the weight is not packed; load_weights does that"
        return self._packed

    def pack(self) -> None:
        """Packs the filled weight and frees the stored form."""
        assert self._packed is None, "a weight is packed once"
        stored = self.weight.data
        self._packed = self._product.pack(stored)
        if self._packed[0].data_ptr() != stored.data_ptr():
            # The loader may still hold views of the stored weight, so its storage is freed here.
            stored.untyped_storage().resize_(0)
        self.weight = frozen_parameter(self._packed[0])
        self.packed_extras.extend(frozen_parameter(part) for part in self._packed[1:])

    def _multiply(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self._product(x, self.packed, None, None, out)


class Linear(PackedModule):
    """A linear layer without bias: x @ weight.T."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: Quantization | None = None,
        backend: str = "auto",
    ) -> None:
        """Allocates the weight, [out_features, in_features], and plans the matrix product.

        Args:
            in_features: Columns of the weight.
            out_features: Rows of the weight.
            device: Where the weight lies.
            dtype: Dtype of the stored weight and of the rows.
            quantization: Quantization of the packed weight; None keeps the dtype.
            backend: Back end of `fused_linear` or `linear`.
        """
        spec = LinearSpec(
            in_features=in_features,
            out_features=out_features,
            dtype=dtype,
            quantization=quantization,
        )
        weight = empty_parameter((out_features, in_features), device=device, dtype=dtype)
        super().__init__(spec, weight, device=device, backend=backend)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [num_tokens, in_features] to [num_tokens, out_features]."""
        return self._multiply(x)


class MergedLinear(Linear):
    """Several linear layers with the same input as one: their weights are stacked by rows."""

    def __init__(
        self,
        in_features: int,
        out_features: tuple[int, ...],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: Quantization | None = None,
        backend: str = "auto",
    ) -> None:
        """Allocates one weight of sum(out_features) rows; other arguments as in `Linear`."""
        super().__init__(
            in_features,
            sum(out_features),
            device=device,
            dtype=dtype,
            quantization=quantization,
            backend=backend,
        )
        self.out_features = out_features

    def parts(self) -> tuple[torch.Tensor, ...]:
        """Returns the rows of each merged layer as views of `weight`, for a loader to fill.

        Call it before the weight is packed.
        """
        assert not self.is_packed, "a packed weight has no rows to fill"
        return torch.split(self.weight, list(self.out_features))


class QKVLinear(MergedLinear):
    """The query, key and value projections of an attention as one linear layer."""

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: Quantization | None = None,
        backend: str = "auto",
    ) -> None:
        """Allocates (num_heads + 2 * num_kv_heads) * head_dim rows; the rest as in `Linear`."""
        heads = (num_heads, num_kv_heads, num_kv_heads)
        super().__init__(
            hidden_size,
            tuple(n * head_dim for n in heads),
            device=device,
            dtype=dtype,
            quantization=quantization,
            backend=backend,
        )
        self.heads = heads
        self.head_dim = head_dim

    def split_heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Projects [num_tokens, hidden_size] to queries, keys and values.

        Returns:
            [num_tokens, num_heads, head_dim] and twice [num_tokens, num_kv_heads, head_dim]: views
            of one tensor.
        """
        qkv = self._multiply(x).view(len(x), sum(self.heads), self.head_dim)
        q, k, v = torch.split(qkv, list(self.heads), dim=1)
        return q, k, v
