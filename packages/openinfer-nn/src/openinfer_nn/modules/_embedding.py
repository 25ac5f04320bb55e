"""The table of token vectors, and the head that may share it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from openinfer_kernels import FusedLinearSpec, LinearSpec, Quantization
from openinfer_nn.modules._linear import PackedModule
from openinfer_nn.modules._parameter import empty_parameter


class Embedding(nn.Module):
    """Token ids to rows of a table."""

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
        self._rows: Callable[[torch.Tensor], torch.Tensor] | None = None

    def look_up_in(self, rows: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Takes rows from elsewhere from now on: a head that shares the table has packed it."""
        del self.weight
        self._rows = rows

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Maps [num_tokens], int64, to [num_tokens, hidden_size]."""
        if self._rows is None:
            return F.embedding(token_ids, self.weight)
        return self._rows(token_ids)


class LMHead(PackedModule):
    """Hidden rows to logits over the vocabulary."""

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
            tied_to: The embedding whose table is the head's too, None if it has its own. Once the
                table is packed, the embedding looks its rows up in the packed one, so there is
                one copy; a quantized one is widened row by row.
            device: Where the weight lies.
            dtype: Of stored weight and hidden rows.
            quantization: Of the weight.
            backend: Of the product.
        """
        spec = LinearSpec(
            in_features=hidden_size,
            out_features=vocab_size,
            dtype=dtype,
            quantization=quantization,
            is_looked_up=tied_to is not None,
        )
        shape = (vocab_size, hidden_size)
        weight = tied_to.weight if tied_to else empty_parameter(shape, device=device, dtype=dtype)
        super().__init__(FusedLinearSpec(linear=spec), weight, device=device, backend=backend)
        # In a tuple: it is not a part of the head.
        self._tied_to = (tied_to,)

    def pack(self) -> None:
        """Packs the weight, and shows a tied embedding where its rows are now."""
        super().pack()
        (embedding,), packed = self._tied_to, self._packed
        if embedding is not None and packed is not None:
            embedding.look_up_in(lambda index: self._linear.rows(packed, index))

    def forward(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Maps [n, hidden_size] to [n, vocab_size], in `out` if there is one."""
        return self._multiply(hidden, out=out)
