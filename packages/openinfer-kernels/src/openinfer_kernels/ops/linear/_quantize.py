"""Quantization of weights to 8 and 4 bits: the values, whatever order a back end packs them in.

32 columns of a row share a scale, symmetric about zero: w = q * scale with q from -127 to 127, or
from -8 to 7. The scale is rounded to bf16 first, and q is chosen for the rounded scale, so only the
rounding of q loses precision. In 4 bits, the scale is the one of five candidates with the least
squared error over the 32 columns: clipping one value of large magnitude can improve the others, as
in llama.cpp's search.
"""

import torch

GROUP_SIZE = 32
"""Columns that share a scale."""

_LIMITS = {"int8": (-127, 127), "int4": (-8, 7)}
# Candidate scales, as factors of the scale that maps the largest magnitude to -8.
_INT4_SCALE_FACTORS = (1.0, 0.94, 0.88, 0.82, 0.76)


def why_not_quantized(in_features: int, quantization: str) -> str | None:
    """Returns None if rows of this length can be quantized, else the reason."""
    if in_features % GROUP_SIZE:
        return f"{quantization} takes rows of a multiple of {GROUP_SIZE}, got {in_features}"
    return None


def quantize_weight(weight: torch.Tensor, quantization: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes a weight.

    Args:
        weight: [n, k], float, k a multiple of 32.
        quantization: "int8" or "int4".

    Returns:
        q [n, k], int8, and scales [n, k / 32], bfloat16.
    """
    groups = _grouped(weight)
    low, high = _LIMITS[quantization]
    if quantization == "int8":
        scales = (groups.abs().amax(dim=2) / high).bfloat16()
        return _round_to(groups, scales, low, high).flatten(1), scales
    most, least = groups.amax(dim=2), groups.amin(dim=2)
    largest = torch.where(-least > most, least, most)
    best_scales, best_error = None, None
    for factor in _INT4_SCALE_FACTORS:
        scales = (largest * (factor / low)).bfloat16()
        q = _round_to(groups, scales, low, high)
        error = _sum_in_halves((q * scales.float().unsqueeze(2) - groups).square())
        if best_scales is None or best_error is None:
            best_scales, best_error = scales, error
            continue
        best_scales = torch.where(error < best_error, scales, best_scales)
        best_error = torch.minimum(error, best_error)
    assert best_scales is not None
    return _round_to(groups, best_scales, low, high).flatten(1), best_scales


def dequantize_weight(q: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns q * scale, [n, k], exact in float32."""
    return (_grouped(q) * scales.float().unsqueeze(2)).flatten(1)


def _grouped(weight: torch.Tensor) -> torch.Tensor:
    """Reshapes [n, k] to [n, groups, 32] in float32."""
    return weight.float().view(weight.shape[0], weight.shape[1] // GROUP_SIZE, GROUP_SIZE)


def _sum_in_halves(groups: torch.Tensor) -> torch.Tensor:
    """Sums [n, groups, 32] to [n, groups]: columns i and i + 16, then i and i + 8, and so on.

    The order is part of the definition: it decides between two scales that are equally good.
    """
    while groups.shape[2] > 1:
        half = groups.shape[2] // 2
        groups = groups[..., :half] + groups[..., half:]
    return groups.squeeze(2)


def _round_to(groups: torch.Tensor, scales: torch.Tensor, low: int, high: int) -> torch.Tensor:
    wide = scales.float().unsqueeze(2)
    # A group of zeros has scale zero.
    inverse = torch.where(wide == 0, 0.0, 1.0 / wide)
    return (groups * inverse).round_().clamp_(low, high).to(torch.int8)
