from itertools import pairwise
from math import prod

_MAX_PARAMETERS = 6_000_000
_MAX_FOLDER_BYTES = 12_000_000

_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "recipe.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def test_folder_is_complete_and_small(folder):
    assert {path.name for path in folder.iterdir()} == _FILES
    assert sum(path.stat().st_size for path in folder.iterdir()) <= _MAX_FOLDER_BYTES


def test_config_is_an_ordinary_qwen3(config):
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["model_type"] == "qwen3"
    assert config["tie_word_embeddings"] is True
    assert config["attention_bias"] is False
    assert config["head_dim"] == 64
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["max_position_embeddings"] >= 2048
    assert config["rope_theta"] == 10000.0
    assert config["torch_dtype"] == "bfloat16"


def test_weights_have_the_names_and_shapes_of_qwen3(config, tensors):
    assert {name: entry["shape"] for name, entry in tensors.items()} == _expected_shapes(config)
    assert {entry["dtype"] for entry in tensors.values()} == {"BF16"}


def test_weights_fill_the_file_without_gaps(folder, tensors):
    spans = sorted(entry["data_offsets"] for entry in tensors.values())
    assert spans[0][0] == 0
    assert all(left[1] == right[0] for left, right in pairwise(spans))
    assert all(
        end - begin == 2 * prod(entry["shape"])
        for entry in tensors.values()
        for begin, end in [entry["data_offsets"]]
    )
    header_bytes = 8 + int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    assert (folder / "model.safetensors").stat().st_size == header_bytes + spans[-1][1]


def test_parameters_stay_under_the_limit(tensors):
    assert sum(prod(entry["shape"]) for entry in tensors.values()) <= _MAX_PARAMETERS


def _expected_shapes(config):
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    layer = {
        "input_layernorm": [hidden],
        "self_attn.q_proj": [q, hidden],
        "self_attn.k_proj": [kv, hidden],
        "self_attn.v_proj": [kv, hidden],
        "self_attn.q_norm": [head_dim],
        "self_attn.k_norm": [head_dim],
        "self_attn.o_proj": [hidden, q],
        "post_attention_layernorm": [hidden],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }
    shapes = {
        "model.embed_tokens.weight": [config["vocab_size"], hidden],
        "model.norm.weight": [hidden],
    }
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes
