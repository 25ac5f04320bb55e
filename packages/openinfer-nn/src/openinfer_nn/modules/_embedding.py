"""The table of token vectors, and the head that may share it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from openinfer_kernels import LinearSpec, Quantization
from openinfer_nn.modules._linear import PackedModule
from openinfer_nn.modules._parameter import empty_parameter


class Embedding(nn.Module):
    """A table that maps token ids to rows."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        """Allocates the table, [vocab_size, hidden_size]."""
        super().__init__()
        self.weight = empty_parameter((vocab_size, hidden_size), device=device, dtype=dtype)
        self._look_up: Callable[[torch.Tensor], torch.Tensor] | None = None

    def share_rows(self, look_up: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Frees the table. Rows then come from `look_up`, which reads the tied head's weight."""
        del self.weight
        self._look_up = look_up

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Maps [num_tokens], int64, to [num_tokens, hidden_size]."""
        if self._look_up is None:
            return F.embedding(token_ids, self.weight)
        return self._look_up(token_ids)


class LMHead(PackedModule):
    """The linear layer that maps hidden rows to logits over the vocabulary."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        tied_to: Embedding | None = None,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: Quantization | None = None,
        backend: str = "auto",
    ) -> None:
        """Allocates [vocab_size, hidden_size], or shares the embedding's table.

        Args:
            vocab_size: Rows.
            hidden_size: Columns.
            tied_to: The embedding whose table is also the head's, None if the head has its own.
                Once the table is packed, the embedding looks its rows up in the packed one, so
                memory holds one copy. Rows of a quantized table are widened when looked up.
            device: Where the weight lies.
            dtype: Dtype of the stored weight and of the hidden rows.
            quantization: Quantization of the packed weight; None keeps the dtype.
            backend: Back end of `fused_linear` or `linear`.
        """
        spec = LinearSpec(
            in_features=hidden_size,
            out_features=vocab_size,
            dtype=dtype,
            quantization=quantization,
            is_looked_up=tied_to is not None,
        )
        if tied_to is None:
            weight = empty_parameter((vocab_size, hidden_size), device=device, dtype=dtype)
        else:
            weight = tied_to.weight
        super().__init__(spec, weight, device=device, backend=backend)
        # A tuple, so that nn.Module does not register the embedding as a child of the head.
        self._tied_to = (tied_to,)

    def pack(self) -> None:
        """Packs the weight. A tied embedding then looks its rows up in the packed weight."""
        super().pack()
        (embedding,), packed = self._tied_to, self.packed
        if embedding is not None:
            embedding.share_rows(lambda index: self._product.rows(packed, index))

    def forward(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Maps [n, hidden_size] to [n, vocab_size], written to `out` if it is given."""
        return self._multiply(hidden, out)
