import numpy as np
import torch
from scipy import stats

from openinfer_sampler._random import GumbelNoise, as_signed, row_keys

MASK = 2**64 - 1
CPU = torch.device("cpu")


def mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def test_bits_are_splitmix64():
    # The first outputs of SplitMix64 from state 1234567, as published with its C code.
    noise = GumbelNoise(4, CPU)
    words = [6457827717110365317, 3203168211198807973]
    expected = [half & 0x7FFFFFFF for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
    assert noise.bits(torch.tensor([1234567]))[0].tolist() == expected


def test_keys_are_those_of_python_integers():
    seeds, positions = [0, 1, 2**63, 2**64 - 1], [0, 7, 131072, 1]
    keys = row_keys(torch.tensor([as_signed(s) for s in seeds]), torch.tensor(positions))
    expected = [
        mix((mix((s + 0x9E3779B97F4A7C15) & MASK) + p) & MASK)
        for s, p in zip(seeds, positions, strict=True)
    ]
    assert keys.tolist() == [as_signed(key) for key in expected]


def test_noise_is_standard_gumbel():
    scores = torch.zeros(8, 4097)
    GumbelNoise(4097, CPU).add_(scores, row_keys(torch.arange(8), torch.arange(8) * 3))
    assert scores.isfinite().all()
    assert stats.kstest(scores.flatten().numpy(), stats.gumbel_r.cdf).pvalue > 1e-3


def test_small_variates_are_resolved():
    # Draws of unlikely tokens depend on them: a 24-bit fraction would come in steps of 6e-8.
    noise = GumbelNoise(2**17, CPU)
    scores = torch.zeros(64, 2**17)
    noise.add_(scores, row_keys(torch.arange(64), torch.zeros(64, dtype=torch.int64)))
    smallest = scores.neg().exp().flatten().sort().values[:400].double().numpy()
    assert len(np.unique(smallest)) > 395
    # The smallest of N exponentials are a Poisson process of rate N.
    gaps = np.diff(smallest, prepend=0.0) * scores.numel()
    assert stats.kstest(gaps, stats.expon.cdf).pvalue > 1e-3


def test_blocks_change_nothing(monkeypatch):
    keys = row_keys(torch.arange(5), torch.arange(5))
    whole, blocks = torch.zeros(5, 33), torch.zeros(5, 33)
    GumbelNoise(33, CPU).add_(whole, keys)
    monkeypatch.setattr("openinfer_sampler._random._CPU_BLOCK", 70)
    GumbelNoise(33, CPU).add_(blocks, keys)
    assert torch.equal(whole, blocks)
