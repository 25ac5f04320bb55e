"""The shape that CPU benchmarks run: Qwen3-0.6B's, with random weights."""

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "eos_token_id": 151_645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40_960,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151_936,
}
PREFILL_TOKENS = 512
PROMPT_TOKENS = 16
DECODE_TOKENS = 48
WEIGHT_STD = 0.02


def prompt(num_tokens: int, seed: int) -> list[int]:
    """Ids that share no beginning with those of another seed."""
    return [(7919 * (seed + 1) + 104_729 * index) % 150_000 for index in range(num_tokens)]
