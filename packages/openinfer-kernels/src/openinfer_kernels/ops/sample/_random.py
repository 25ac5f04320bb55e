"""Counter-based random numbers: a pure function of (seed, position, token id).

SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)
is a bijective mix of a counter, so any element of a stream is computed without the ones before it.
A row's stream starts at a key mixed from its seed and its position. Element i yields the numbers of
token ids 2i and 2i + 1. They are computed in integer arithmetic, so they are the same on every
device, in every batch and after every preemption.
"""

import math

import torch

GAMMA = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)

LARGEST_NOISE = 32 * math.log(2) + 1e-3
"""Upper bound of the noise."""


def as_signed(value: int) -> int:
    """Returns the int64 with the same 64 bits as an unsigned `value`."""
    return value - (1 << 64) if value >= 1 << 63 else value


_SIGNED_GAMMA = as_signed(GAMMA)
_SIGNED_MULTIPLIERS = tuple(as_signed(multiplier) for multiplier in MULTIPLIERS)


def row_keys(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns the key of each row's stream.

    Args:
        seeds: [n], int64: the bits of unsigned 64-bit seeds.
        positions: [n], int64: index in the sequence of the token to draw.

    Returns:
        [n], int64.
    """
    return _mix_(_mix_(seeds + _SIGNED_GAMMA).add_(positions))


def counters(vocab_size: int, device: torch.device) -> torch.Tensor:
    """Returns what to add to a row's key for each pair of ids: [ceil(vocab_size / 2)], int64."""
    steps = torch.arange(1, (vocab_size + 1) // 2 + 1, dtype=torch.int64, device=device)
    return steps.mul_(_SIGNED_GAMMA)


def random_bits(keys: torch.Tensor, counters: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Returns 31 random bits for each token id of the streams `keys`: [n, vocab_size], int32."""
    words = _mix_(counters + keys.unsqueeze(1))
    return words.view(torch.int32).bitwise_and_(0x7FFFFFFF)[:, :vocab_size]


def gumbel_noise(bits: torch.Tensor) -> torch.Tensor:
    """Returns standard Gumbel noise from `random_bits`, float32.

    The id with the largest sum of scaled logit and noise is a draw from their softmax (Gumbel,
    1954; Maddison, Tarlow and Minka, "A* sampling", 2014): no normalisation, no sort, no prefix
    sum, and a tiny change of the logits moves the draw only where the two best sums nearly tie.
    """
    # Floats are finest near 0, so the variates that win, the small ones, keep all 31 bits. Both
    # ends are clamped away from 0 and 1, whose logarithms are infinite.
    fraction = bits.mul(-(2.0**-31)).clamp_(min=2.0**-24 - 1, max=-(2.0**-32))
    return fraction.log1p_().neg_().log_().neg_()


def _mix_(words: torch.Tensor) -> torch.Tensor:
    """Applies SplitMix64's finaliser in place; int64 arithmetic wraps around like unsigned."""
    for shift, multiplier in zip(SHIFTS, (*_SIGNED_MULTIPLIERS, None), strict=True):
        # A right shift of int64 copies the sign; the mask makes it an unsigned shift.
        words ^= (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        if multiplier is not None:
            words *= multiplier
    return words
