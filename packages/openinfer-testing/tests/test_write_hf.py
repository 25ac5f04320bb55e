"""Checkpoints written by transformers' own classes."""

import json

import pytest
from safetensors.torch import load_file
from transformers import AutoConfig, LlamaConfig, Qwen2Config

from openinfer_testing.torch import TINY_CHECKPOINTS, write_hf

OVERRIDES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("config_class", "architecture", "has_bias"),
    [(LlamaConfig, "LlamaForCausalLM", False), (Qwen2Config, "Qwen2ForCausalLM", True)],
)
def test_any_architecture_is_written_with_its_own_names(
    tmp_path, config_class, architecture, has_bias
):
    folder = write_hf(config_class, OVERRIDES, 0.3, tmp_path / "model")
    assert AutoConfig.from_pretrained(folder).architectures == [architecture]
    tensors = load_file(folder / "model.safetensors")
    assert ("model.layers.0.self_attn.q_proj.bias" in tensors) == has_bias
    assert 0.25 < tensors["model.layers.1.mlp.up_proj.weight"].std() < 0.35
    assert 0.8 < tensors["model.norm.weight"].mean() < 1.2


def test_a_draw_is_repeatable_and_in_shards_the_same(tmp_path):
    whole = write_hf(LlamaConfig, OVERRIDES, 0.3, tmp_path / "whole")
    parts = write_hf(LlamaConfig, OVERRIDES, 0.3, tmp_path / "parts", max_shard_bytes=150_000)
    files = sorted(parts.glob("*.safetensors"))
    assert len(files) > 1
    expected = load_file(whole / "model.safetensors")
    loaded = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert loaded.keys() == expected.keys()
    assert all((loaded[name] == expected[name]).all() for name in expected)


def test_logits_that_hardly_spread_are_refused(tmp_path):
    with pytest.raises(ValueError, match="standard deviation"):
        write_hf(LlamaConfig, OVERRIDES, 0.02, tmp_path / "narrow")


def test_a_tiny_checkpoint_has_the_published_spelling(tmp_path):
    (shape,) = (shape for shape in TINY_CHECKPOINTS if shape.name == "gqa2-yarn")
    config = json.loads((shape.write(tmp_path / "tiny") / "config.json").read_text())
    assert config["rope_scaling"]["rope_type"] == "yarn"
    assert "rope_parameters" not in config
