"""What the runtime asks of a model file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from openinfer_nn import CacheSpec, CacheView, StepInputs, WeightMap


class TorchModel(Protocol):
    """A network over a step's rows and the paged cache; an `nn.Module` in practice.

    Called from the step thread only, under `torch.inference_mode`. It keeps no state besides its
    weights, reads nothing back from a device and has no data-dependent shape.
    """

    def forward(self, inputs: StepInputs, cache: CacheView, /) -> torch.Tensor:
        """Runs a step, writing to the cache: [num_tokens, hidden_size]."""

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None, /) -> torch.Tensor:
        """Maps hidden rows [n, hidden_size] to [n, vocab_size], in the model's dtype.

        Args:
            hidden: What `forward` returned, or rows of it.
            out: Where the result goes; None makes room for it.
        """

    def cache_spec(self) -> CacheSpec:
        """What is cached for every token."""

    def weight_map(self) -> WeightMap:
        """Where each tensor of a checkpoint goes."""

    def parameters(self) -> Iterator[torch.Tensor]:
        """Every weight, shared ones once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What a model is built for.

    Attributes:
        device: where its weights go.
        dtype: of weights, activations and cache.
        block_size: tokens a cache block holds.
        max_model_len: longest sequence.
        quantization: of the products' weights; None keeps the dtype.
        max_layers: layers that are built at most; None builds all.
    """

    device: torch.device
    dtype: torch.dtype
    block_size: int
    max_model_len: int
    quantization: Literal["int8", "int4"] | None = None
    max_layers: int | None = None


Build = Callable[[BuildOptions], TorchModel]
"""Allocates a model; others fill its weights."""
