"""What the runtime asks of a model file."""

from collections.abc import Iterator
from typing import Protocol

import torch

from openinfer_nn import CacheSpec, CacheView, StepInputs, WeightMap


class TorchModel(Protocol):
    """A network over a step's rows and the paged cache; an `nn.Module` in practice.

    Called from the step thread only, under `torch.inference_mode`. It keeps no state besides its
    weights, reads nothing back from a device and has no data-dependent shape.
    """

    def forward(self, inputs: StepInputs, cache: CacheView, /) -> torch.Tensor:
        """Runs a step, writing to the cache: [num_tokens, hidden_size]."""

    def logits(self, hidden: torch.Tensor, /) -> torch.Tensor:
        """Maps hidden rows [n, hidden_size] to [n, vocab_size]."""

    def cache_spec(self) -> CacheSpec:
        """What is cached for every token."""

    def weight_map(self) -> WeightMap:
        """Where each tensor of a checkpoint goes."""

    def parameters(self) -> Iterator[torch.Tensor]:
        """Every weight, shared ones once."""
