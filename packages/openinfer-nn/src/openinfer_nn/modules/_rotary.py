"""Rotary position embedding: the frequencies of each scaling, and the table of angles.

The definitions are those of the papers and of the checkpoints' own training code, as transformers
computes them; the tests of the model packages hold every one of them to it.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by a factor (position interpolation; Chen et al., 2023)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN: slow dimensions interpolated, fast ones kept, a ramp between (Peng et al., 2023).

    Attributes:
        factor: How many times longer contexts get.
        original_max_position: Longest context of the training.
        beta_fast: Dimensions that turn more often than this over that context are kept.
        beta_slow: Those that turn less often are interpolated.
        attention_factor: Multiplies cosines and sines; None for the paper's 0.1 ln(factor) + 1.
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
    """Llama 3.1's: waves longer than the training context interpolated, short ones kept.

    Attributes:
        factor: How many times longer contexts get.
        original_max_position: Longest context of the training.
        low_freq_factor: Waves that fit fewer times than this in that context are interpolated.
        high_freq_factor: Waves that fit more times are kept.
    """

    factor: float
    original_max_position: int
    low_freq_factor: float
    high_freq_factor: float


RopeScaling = LinearScaling | YarnScaling | Llama3Scaling


def inverse_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> tuple[torch.Tensor, float]:
    """Returns the angle per position of each pair of dimensions, and the amplitude.

    Args:
        head_dim: Dimensions of a head; even.
        theta: Base of the geometric series of wavelengths.
        scaling: How the frequencies were stretched for longer contexts, None if they were not.

    Returns:
        [head_dim / 2], float32 on the CPU, and what multiplies cosines and sines.
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
    # A ramp of no width is a step.
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
    """The table of angles of a model, shared by the attentions of its layers.

    Attributes:
        cos_sin: [max_positions, head_dim], float32; a row is the cosines, then the sines.
    """

    def __init__(
        self,
        *,
        head_dim: int,
        theta: float,
        scaling: RopeScaling | None,
        max_positions: int,
        device: torch.device | str,
    ) -> None:
        """Computes the table."""
        super().__init__()
        frequencies, amplitude = inverse_frequencies(head_dim, theta, scaling)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        table = torch.cat((angles.cos(), angles.sin()), dim=1) * amplitude
        self.register_buffer("cos_sin", table.to(device), persistent=False)
        self.cos_sin: torch.Tensor
