"""The rotary frequencies of every supported configuration, against those of transformers."""

import pytest
import torch
from transformers import Qwen3Config as TransformersConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from openinfer_nn import inverse_frequencies, rope_scaling
from openinfer_qwen3 import Qwen3Config

PUBLISHED = {
    "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "hidden_size": 2560,
    "intermediate_size": 9728, "max_position_embeddings": 40960, "num_attention_heads": 32,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000, "vocab_size": 151936,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rope_scaling": None, "rope_theta": 5000000, "head_dim": 64},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.5}},
        # The model card advises to keep max_position_embeddings, so `factor` is not its ratio to
        # the original length.
        {"rope_scaling": YARN},
        {"rope_scaling": YARN, "max_position_embeddings": 131072},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        {"rope_scaling": YARN | {"factor": 0.5}},
        {"rope_scaling": YARN | {"attention_factor": 1.25}},
        {"rope_scaling": YARN | {"beta_fast": 16, "beta_slow": 2}},
        {"rope_scaling": YARN | {"truncate": False}},
        {"rope_scaling": YARN | {"original_max_position_embeddings": 64}},
        {"rope_scaling": YARN, "head_dim": 64, "rope_theta": 10000},
        {"rope_scaling": LLAMA3},
        {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}},
    ],
    ids=str,
)
def test_frequencies_are_those_of_transformers(fields):
    config = PUBLISHED | fields
    ours = Qwen3Config.from_dict(config)
    frequencies, amplitude = inverse_frequencies(
        ours.head_dim, ours.rope.theta, rope_scaling(ours.rope)
    )
    theirs = Qwen3RotaryEmbedding(TransformersConfig(**config))
    torch.testing.assert_close(frequencies, theirs.inv_freq, rtol=1e-6, atol=0)
    assert amplitude == pytest.approx(theirs.attention_scaling, rel=1e-12)
