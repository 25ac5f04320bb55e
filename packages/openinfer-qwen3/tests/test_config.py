import json
import subprocess
import sys

import pytest
from transformers import Qwen3Config as TransformersConfig

from openinfer_engine import UnsupportedConfig
from openinfer_qwen3 import Qwen3Config
from openinfer_testing.torch import TINY_CHECKPOINTS


@pytest.fixture
def qwen3_4b() -> dict:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "max_position_embeddings": 40960,
        "max_window_layers": 36,
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": 151936,
    }


def test_a_published_config_is_read(qwen3_4b):
    config = Qwen3Config.from_dict(qwen3_4b)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (32, 8, 128)
    assert (config.rope.type, config.rope.theta, config.dtype) == ("default", 1e6, "bfloat16")
    assert config.tie_word_embeddings


def test_the_newer_spelling_reads_the_same(qwen3_4b):
    old = Qwen3Config.from_dict(qwen3_4b)
    new = dict(qwen3_4b, dtype=qwen3_4b["torch_dtype"], layer_types=["full_attention"] * 36)
    for field in ("rope_theta", "rope_scaling", "torch_dtype"):
        del new[field]
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000000}
    assert Qwen3Config.from_dict(new) == old


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_yarn_as_the_model_cards_have_it(qwen3_4b, spelling):
    qwen3_4b["rope_scaling"] = {
        spelling: "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }
    rope = Qwen3Config.from_dict(qwen3_4b).rope
    assert (rope.type, rope.original_max_position, rope.options) == ("yarn", 32768, {"factor": 4.0})


@pytest.mark.parametrize(
    "field",
    [
        "architectures", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings",
        "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
        "rope_theta", "vocab_size",
    ],
)  # fmt: skip
def test_a_missing_field_is_named(qwen3_4b, field):
    del qwen3_4b[field]
    with pytest.raises(UnsupportedConfig, match="does not have this field") as caught:
        Qwen3Config.from_dict(qwen3_4b)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "architectures"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": 1}}, "rope_scaling.mscale"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
         "rope_parameters.partial_rotary_factor"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"head_dim": 127}, "head_dim"),
        ({"hidden_size": "2560"}, "hidden_size"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"compression_config": {"format": "int-quantized"}}, "compression_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"original_max_position_embeddings": 8192}, "original_max_position_embeddings"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"attention_bias": "no"}, "attention_bias"),
        ({"is_causal": False}, "is_causal"),
        ({"is_causal": 0}, "is_causal"),
        ({"use_sliding_window": "no"}, "use_sliding_window"),
        ({"layer_types": 3}, "layer_types"),
        ({"layer_types": [["full_attention"]]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": "1e6"}, "rope_theta"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": True}, "rope_theta"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "rope_parameters.rope_theta"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 0}},
         "rope_scaling.beta_fast"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "truncate": "no"}},
         "rope_scaling.truncate"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4,
                           "original_max_position_embeddings": "x"}},
         "rope_scaling.original_max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4, "low_freq_factor": 2,
                           "high_freq_factor": 2}}, "rope_scaling.high_freq_factor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_not_served_is_refused_by_name(qwen3_4b, change, field):
    with pytest.raises(UnsupportedConfig) as caught:
        Qwen3Config.from_dict(qwen3_4b | change)
    assert caught.value.field == field
    assert caught.value.field in str(caught.value)


@pytest.mark.parametrize("shape", TINY_CHECKPOINTS, ids=lambda shape: shape.name)
def test_what_transformers_saves_reads_the_same(shape, tmp_path):
    published = shape.config()
    TransformersConfig.from_dict(dict(published)).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in saved
    saved.setdefault("architectures", published["architectures"])
    assert Qwen3Config.from_dict(saved) == Qwen3Config.from_dict(published)


def test_two_spellings_of_one_thing_must_agree(qwen3_4b):
    yarn = {"rope_type": "yarn", "factor": 4.0}
    plain = {"rope_type": "default", "rope_theta": 1000000}
    Qwen3Config.from_dict(qwen3_4b | {"rope_scaling": yarn, "rope_parameters": yarn})
    with pytest.raises(UnsupportedConfig, match=r"rope_scaling .*rope_parameters"):
        Qwen3Config.from_dict(qwen3_4b | {"rope_scaling": yarn, "rope_parameters": plain})


def test_a_null_counts_as_not_there(qwen3_4b):
    absent = {"dtype": None, "tie_word_embeddings": None, "attention_bias": None, "is_causal": None}
    config = Qwen3Config.from_dict(qwen3_4b | absent)
    assert (config.dtype, config.tie_word_embeddings) == ("bfloat16", False)


def test_a_window_that_is_switched_off_is_no_window(qwen3_4b):
    Qwen3Config.from_dict(qwen3_4b | {"sliding_window": 4096, "use_sliding_window": False})


def test_a_config_is_judged_without_torch():
    program = "import sys; sys.modules['torch'] = None; import openinfer_qwen3.config"
    subprocess.run([sys.executable, "-c", program], check=True)
