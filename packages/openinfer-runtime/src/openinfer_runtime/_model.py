"""Interface between the runtime and a model file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from openinfer_nn import CacheSpec, CacheView, StepInputs, WeightMap


class TorchModel(Protocol):
    """A network over a step's rows and the paged cache; an `nn.Module` in practice.

    The step thread calls it under `torch.inference_mode`. A model has no state besides its weights,
    reads nothing back from the device, and has no shapes that depend on data.
    """

    def forward(self, inputs: StepInputs, cache: CacheView, /) -> torch.Tensor:
        """Runs a step and writes to the cache; returns [num_tokens, hidden_size]."""

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None, /) -> torch.Tensor:
        """Maps hidden rows [n, hidden_size] to [n, vocab_size], in the model's dtype.

        Args:
            hidden: Result of `forward`, or some of its rows.
            out: Tensor for the result; None allocates one.
        """

    def cache_spec(self) -> CacheSpec:
        """Returns the spec of the cached tensors."""

    def weight_map(self) -> WeightMap:
        """Returns the parameter of each tensor of a checkpoint."""

    def parameters(self) -> Iterator[torch.Tensor]:
        """Yields every weight; shared weights come once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How a model is built.

    Every option that changes which kernels a step launches must be a field here or in
    `openinfer_engine.ServePlan`. The list of kernels that `compile_ahead` stores is looked up by
    both. An option that is missing from them would find the list of another configuration, and a
    request would wait for the compiler.

    Attributes:
        device: Device of the weights.
        dtype: Type of weights, activations and cache.
        block_size: Tokens per cache block.
        max_model_len: Longest sequence, in tokens.
        quantization: Format of the linear layers' weights; None keeps `dtype`.
        layers: "one_of_each" builds one layer of each kind that the model has, for a dry run
            that lists kernels. Layers of one kind launch the same kernels.
    """

    device: torch.device
    dtype: torch.dtype
    block_size: int
    max_model_len: int
    quantization: Literal["int8", "int4"] | None = None
    layers: Literal["all", "one_of_each"] = "all"


Build = Callable[[BuildOptions], TorchModel]
"""Allocates a model. The runtime fills its weights."""
