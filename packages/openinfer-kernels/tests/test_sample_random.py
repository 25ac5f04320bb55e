import numpy as np
import torch
from scipy import stats

from openinfer_kernels.ops.sample._random import (
    LARGEST_NOISE,
    as_signed,
    counters,
    gumbel_noise,
    random_bits,
    row_keys,
)

MASK = 2**64 - 1
CPU = torch.device("cpu")


def mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def bits_of(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return random_bits(keys, counters(vocab_size, CPU), vocab_size)


def test_bits_are_splitmix64():
    # The first outputs of SplitMix64 from state 1234567, as published with its C code.
    words = [6457827717110365317, 3203168211198807973]
    expected = [half & 0x7FFFFFFF for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
    assert bits_of(torch.tensor([1234567]), 4)[0].tolist() == expected


def test_keys_are_those_of_python_integers():
    seeds, positions = [0, 1, 2**63, 2**64 - 1], [0, 7, 131072, 1]
    keys = row_keys(torch.tensor([as_signed(s) for s in seeds]), torch.tensor(positions))
    expected = [
        mix((mix((s + 0x9E3779B97F4A7C15) & MASK) + p) & MASK)
        for s, p in zip(seeds, positions, strict=True)
    ]
    assert keys.tolist() == [as_signed(key) for key in expected]


def test_noise_is_standard_gumbel():
    noise = gumbel_noise(bits_of(row_keys(torch.arange(8), torch.arange(8) * 3), 4097))
    assert noise.isfinite().all()
    assert stats.kstest(noise.flatten().numpy(), stats.gumbel_r.cdf).pvalue > 1e-3


def test_no_noise_is_above_the_largest():
    largest = float(gumbel_noise(torch.tensor([0]))[0])
    assert largest <= LARGEST_NOISE < largest + 0.01


def test_small_variates_are_resolved():
    # Draws of unlikely tokens depend on them: a 24-bit fraction would have steps of 6e-8.
    noise = gumbel_noise(bits_of(row_keys(torch.arange(64), torch.zeros(64).long()), 2**17))
    smallest = noise.neg().exp().flatten().sort().values[:400].double().numpy()
    assert len(np.unique(smallest)) > 395
    # The smallest of N exponentials are a Poisson process of rate N.
    gaps = np.diff(smallest, prepend=0.0) * noise.numel()
    assert stats.kstest(gaps, stats.expon.cdf).pvalue > 1e-3
