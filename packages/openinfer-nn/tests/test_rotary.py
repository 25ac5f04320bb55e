import math

import pytest
import torch

from openinfer_nn import (
    LinearScaling,
    Llama3Scaling,
    RotaryEmbedding,
    YarnScaling,
    inverse_frequencies,
)


def test_the_series_is_geometric():
    frequencies, amplitude = inverse_frequencies(8, 10_000.0)
    torch.testing.assert_close(frequencies, torch.tensor([1.0, 0.1, 0.01, 0.001]))
    assert amplitude == 1.0


def test_linear_divides_every_frequency():
    plain, _ = inverse_frequencies(64, 1e4)
    scaled, amplitude = inverse_frequencies(64, 1e4, LinearScaling(factor=4.0))
    torch.testing.assert_close(scaled, plain / 4)
    assert amplitude == 1.0


def test_yarn_keeps_fast_dimensions_and_stretches_slow_ones():
    plain, _ = inverse_frequencies(128, 1e6)
    scaling = YarnScaling(factor=4.0, original_max_position=32768)
    scaled, amplitude = inverse_frequencies(128, 1e6, scaling)
    ratio = plain / scaled
    turns = 32768 * plain / (2 * math.pi)
    torch.testing.assert_close(ratio[turns > 64], torch.ones_like(ratio[turns > 64]))
    torch.testing.assert_close(ratio[turns < 0.5], torch.full_like(ratio[turns < 0.5], 4.0))
    assert ((ratio[1:] - ratio[:-1]) >= -1e-5).all(), "the ramp is monotonic"
    assert amplitude == pytest.approx(0.1 * math.log(4.0) + 1.0)


def test_yarn_takes_a_given_amplitude():
    scaling = YarnScaling(factor=4.0, original_max_position=64, attention_factor=1.0)
    assert inverse_frequencies(64, 1e4, scaling)[1] == 1.0


def test_llama3_keeps_short_waves_and_stretches_long_ones():
    plain, _ = inverse_frequencies(128, 5e5)
    scaling = Llama3Scaling(
        factor=8.0, original_max_position=8192, low_freq_factor=1.0, high_freq_factor=4.0
    )
    scaled, _ = inverse_frequencies(128, 5e5, scaling)
    waves = 8192 * plain / (2 * math.pi)
    torch.testing.assert_close(scaled[waves > 4], plain[waves > 4])
    torch.testing.assert_close(scaled[waves < 1], plain[waves < 1] / 8)


def test_the_table_holds_cosines_then_sines():
    rotary = RotaryEmbedding(
        num_heads=1,
        num_kv_heads=1,
        head_dim=4,
        theta=100.0,
        scaling=None,
        max_positions=3,
        device="cpu",
        dtype=torch.float32,
    )
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]])
    torch.testing.assert_close(rotary.cos_sin, torch.cat((angles.cos(), angles.sin()), dim=1))
    assert rotary.cos_sin.dtype == torch.float32
    assert not list(rotary.parameters())
