"""Random Qwen3 checkpoints, small enough for a laptop, in shapes that have exposed engine bugs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import Qwen3Config

from openinfer_testing.torch._tokenizer import tokenizer_config, write_tokenizer
from openinfer_testing.torch._write_hf import write_hf


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyCheckpoint:
    """The shape of a random Qwen3 checkpoint.

    Attributes:
        name: Name of the shape.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Dimensions of a head.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
        num_layers: Layers.
        vocab_size: Rows of the embedding, at least 259.
        max_position: Longest context, in tokens.
        rope_theta: Base of the wavelengths.
        rope_scaling: The field as config.json spells it, None for none.
        tie_word_embeddings: Whether the embedding is also the output head.
        dtype: Dtype of the stored weights: "float32", "bfloat16" or "float16".
        max_shard_bytes: Size of a weight file; a larger checkpoint has several and an index.
        init_std: Standard deviation of the weights.
        seed: Seed of the draw.
        extra_config: Fields of config.json to add or replace.
    """

    name: str
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    hidden_size: int = 64
    intermediate_size: int = 96
    num_layers: int = 3
    vocab_size: int = 320
    max_position: int = 512
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    tie_word_embeddings: bool = True
    dtype: str = "float32"
    max_shard_bytes: int | None = None
    init_std: float = 0.3
    seed: int = 2  # typical: 4-bit weights lose 0.6 to 0.8 nats; seed 0 is an outlier
    extra_config: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Returns config.json in the spelling of published Qwen3 checkpoints."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position,
            "max_window_layers": self.num_layers,
            "model_type": "qwen3",
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_scaling": dict(self.rope_scaling) if self.rope_scaling else None,
            "rope_theta": self.rope_theta,
            "sliding_window": None,
            "tie_word_embeddings": self.tie_word_embeddings,
            "torch_dtype": self.dtype,
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": self.vocab_size,
            **self.extra_config,
        }

    def write(self, folder: Path, device: str = "cpu") -> Path:
        """Writes the checkpoint with tokenizer and generation config; returns the folder.

        config.json is in the published spelling, not in the one that transformers saves.

        Args:
            folder: Created if it does not exist.
            device: Device that draws the weights and computes the logits for the check. Use a GPU
                for large checkpoints.

        Raises:
            ValueError: The logits spread too little for a comparison to mean anything.
        """
        write_hf(
            Qwen3Config,
            self.config(),
            self.init_std,
            folder,
            seed=self.seed,
            device=device,
            max_shard_bytes=self.max_shard_bytes,
        )
        files = {
            "config.json": self.config(),
            "generation_config.json": {"bos_token_id": 0, "eos_token_id": [2, 0]},
            "tokenizer_config.json": tokenizer_config(),
        }
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=2) + "\n")
        write_tokenizer(folder, self.vocab_size)
        return folder


TINY_CHECKPOINTS: tuple[TinyCheckpoint, ...] = (
    TinyCheckpoint(name="mha-d64-tied", num_heads=4, num_kv_heads=4),
    TinyCheckpoint(
        name="gqa2-d64-untied",
        num_heads=4,
        num_kv_heads=2,
        tie_word_embeddings=False,
        max_shard_bytes=400_000,
    ),
    TinyCheckpoint(name="gqa4-d128-tied", num_heads=8, num_kv_heads=2, head_dim=128),
    TinyCheckpoint(name="odd7-mqa-d64", num_heads=7, num_kv_heads=1, tie_word_embeddings=False),
    TinyCheckpoint(name="odd5-mha-d128", num_heads=5, num_kv_heads=5, head_dim=128, hidden_size=80),
    TinyCheckpoint(
        name="gqa2-yarn",
        num_heads=4,
        num_kv_heads=2,
        rope_theta=1_000_000.0,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
    TinyCheckpoint(
        name="gqa2-linear",
        num_heads=6,
        num_kv_heads=3,
        rope_scaling={"rope_type": "linear", "factor": 2.0},
        max_shard_bytes=600_000,
    ),
    TinyCheckpoint(
        name="gqa4-d128-bf16", num_heads=8, num_kv_heads=2, head_dim=128, dtype="bfloat16"
    ),
    TinyCheckpoint(
        name="gqa2-d64-fp16",
        num_heads=4,
        num_kv_heads=2,
        tie_word_embeddings=False,
        dtype="float16",
    ),
)
