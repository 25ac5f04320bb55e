"""Rotary position embedding: the frequencies of each scaling, the table of angles, the rotation.

The definitions are those of the papers and of the checkpoints' own training code, as transformers
computes them. The tests of the model packages compare each with transformers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from openinfer_kernels import RopeSpec, plan_rope


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Position interpolation: positions are divided by a factor (Chen et al., 2023)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN: slow dimensions are interpolated, fast ones kept, with a ramp between (Peng, 2023).

    Attributes:
        factor: Ratio of the longest context to that of the training.
        original_max_position: Longest context of the training, in tokens.
        beta_fast: Dimensions with more turns than this over that context are kept.
        beta_slow: Dimensions with fewer turns than this are interpolated.
        attention_factor: Factor of cosines and sines; None for the paper's 0.1 ln(factor) + 1.
        truncate: Whether the ramp begins and ends at whole dimensions.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1: waves longer than the training context are interpolated, short ones kept.

    Attributes:
        factor: Ratio of the longest context to that of the training.
        original_max_position: Longest context of the training, in tokens.
        low_freq_factor: Waves that fit fewer times than this in that context are interpolated.
        high_freq_factor: Waves that fit more times than this are kept.
    """

    factor: float
    original_max_position: int
    low_freq_factor: float
    high_freq_factor: float


RopeScaling = LinearScaling | YarnScaling | Llama3Scaling


class RopeParameters(Protocol):
    """A configuration's rotary embedding, such as openinfer-engine's `RopeConfig`."""

    @property
    def type(self) -> str:
        """Name of the scaling: "default", "linear", "yarn" or "llama3"."""

    @property
    def theta(self) -> float:
        """Base of the geometric series of wavelengths."""

    @property
    def original_max_position(self) -> int:
        """Longest context of the training, for yarn and llama3."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Parameters of the scaling, by name."""


def rope_scaling(rope: RopeParameters) -> RopeScaling | None:
    """Returns the scaling of the frequencies that a configuration names, None for none."""
    match rope.type:
        case "default":
            return None
        case "linear":
            return LinearScaling(**rope.options)
        case "yarn":
            return YarnScaling(original_max_position=rope.original_max_position, **rope.options)
        case "llama3":
            return Llama3Scaling(original_max_position=rope.original_max_position, **rope.options)
        case _:
            raise ValueError(f"no rotary scaling is called {rope.type!r}")


def inverse_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> tuple[torch.Tensor, float]:
    """Returns the angle per position of each pair of dimensions, and the amplitude.

    Args:
        head_dim: Dimensions of a head; even.
        theta: Base of the geometric series of wavelengths.
        scaling: How the frequencies were stretched for longer contexts, None if they were not.

    Returns:
        [head_dim / 2], float32 on the CPU, and the factor of cosines and sines.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    frequencies = 1.0 / (theta**exponents)
    match scaling:
        case None:
            return frequencies, 1.0
        case LinearScaling():
            return frequencies / scaling.factor, 1.0
        case YarnScaling():
            return _yarn(frequencies, head_dim, theta, scaling)
        case Llama3Scaling():
            return _llama3(frequencies, scaling), 1.0


def _yarn(
    frequencies: torch.Tensor, head_dim: int, theta: float, scaling: YarnScaling
) -> tuple[torch.Tensor, float]:
    def dimension_turning(turns: float) -> float:
        length = scaling.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(theta))

    first, last = dimension_turning(scaling.beta_fast), dimension_turning(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    # A ramp of width 0 is a step; a small width avoids a division by zero.
    width = (last - first) or 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    scaled = frequencies / scaling.factor * ramp + frequencies * (1 - ramp)
    amplitude = scaling.attention_factor
    if amplitude is None:
        amplitude = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return scaled, amplitude


def _llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    waves = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((waves - low) / (high - low)).clamp(0, 1)
    return frequencies * kept + frequencies / scaling.factor * (1 - kept)


class RotaryEmbedding(nn.Module):
    """Rotation of queries and keys by the angles of their positions; layers share one.

    Attributes:
        cos_sin: [max_positions, head_dim], float32; a row is the cosines, then the sines.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        theta: float,
        scaling: RopeScaling | None,
        max_positions: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        """Computes the table of angles and plans the op.

        Args:
            num_heads: Query heads.
            num_kv_heads: Key heads.
            head_dim: Dimensions of a head; even.
            theta: Base of the geometric series of wavelengths.
            scaling: How the frequencies were stretched for longer contexts, None if they were not.
            max_positions: Rows of the table.
            device: Where it lies.
            dtype: Dtype of queries and keys.
        """
        super().__init__()
        frequencies, amplitude = inverse_frequencies(head_dim, theta, scaling)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        table = torch.cat((angles.cos(), angles.sin()), dim=1) * amplitude
        self.register_buffer("cos_sin", table.to(device), persistent=False)
        self.cos_sin: torch.Tensor
        spec = RopeSpec(
            num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype
        )
        self._rope = plan_rope(spec, device)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotates [num_tokens, heads, head_dim] queries and keys to their positions."""
        return self._rope(q, k, self.cos_sin, positions)
