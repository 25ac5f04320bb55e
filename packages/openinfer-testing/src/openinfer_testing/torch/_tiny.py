"""Random Qwen3 checkpoints in every shape that has tripped an engine, small enough for a laptop.

Weights are drawn wide (standard deviation 0.2 to 0.3): with the usual 0.02 all logits are nearly
equal, and a model with a broken attention would pass any comparison. The builder checks its work.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from openinfer_testing.torch._reference import reference_logits
from openinfer_testing.torch._tokenizer import tokenizer_config, write_tokenizer

MIN_LOGIT_STD = 2.0
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyCheckpoint:
    """The shape of a random Qwen3 checkpoint.

    Attributes:
        name: Of the shape.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Dimensions of a head.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
        num_layers: Layers.
        vocab_size: Rows of the embedding, at least 259.
        max_position: Longest context.
        rope_theta: Base of the wavelengths.
        rope_scaling: As config.json spells it, None for none.
        tie_word_embeddings: Whether the embedding is the output head too.
        dtype: "float32", "bfloat16" or "float16", as stored.
        num_shards: Files the weights are spread over; with more than one there is an index.
        init_std: Standard deviation of the weights.
        seed: Of the draw.
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
    num_shards: int = 1
    init_std: float = 0.3
    seed: int = 0
    extra_config: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Returns config.json as Qwen3 checkpoints have it."""
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

    def tensors(self, device: str = "cpu") -> dict[str, torch.Tensor]:
        """Draws the weights, by checkpoint name; other devices draw other numbers."""
        generator = torch.Generator(device).manual_seed(self.seed)
        dtype = _DTYPES[self.dtype]

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        def matrix(rows: int, cols: int) -> torch.Tensor:
            return (normal(rows, cols) * self.init_std).to(dtype)

        def scale(size: int) -> torch.Tensor:
            return (1.0 + 0.3 * normal(size)).to(dtype)

        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        hidden, intermediate = self.hidden_size, self.intermediate_size
        tensors = {"model.embed_tokens.weight": matrix(self.vocab_size, hidden)}
        for layer in range(self.num_layers):
            shapes = {
                "self_attn.q_proj": (queries, hidden),
                "self_attn.k_proj": (keys, hidden),
                "self_attn.v_proj": (keys, hidden),
                "self_attn.o_proj": (hidden, queries),
                "mlp.gate_proj": (intermediate, hidden),
                "mlp.up_proj": (intermediate, hidden),
                "mlp.down_proj": (hidden, intermediate),
            }
            scales = {
                "input_layernorm": hidden,
                "self_attn.q_norm": self.head_dim,
                "self_attn.k_norm": self.head_dim,
                "post_attention_layernorm": hidden,
            }
            prefix = f"model.layers.{layer}"
            tensors |= {f"{prefix}.{n}.weight": matrix(*shape) for n, shape in shapes.items()}
            tensors |= {f"{prefix}.{n}.weight": scale(size) for n, size in scales.items()}
        tensors["model.norm.weight"] = scale(hidden)
        if not self.tie_word_embeddings:
            tensors["lm_head.weight"] = matrix(self.vocab_size, hidden)
        return tensors

    def write(self, folder: Path, device: str = "cpu") -> Path:
        """Writes the checkpoint with tokenizer and generation config; returns the folder.

        Args:
            folder: Made if it is not there.
            device: Where weights are drawn and judged; large ones want a GPU.

        Raises:
            ValueError: The logits of the draw spread too little for a comparison to mean anything.
        """
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            "config.json": self.config(),
            "generation_config.json": {"bos_token_id": 0, "eos_token_id": [2, 0]},
            "tokenizer_config.json": tokenizer_config(),
        }
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=2) + "\n")
        write_tokenizer(folder, self.vocab_size)
        _write_weights(folder, self.tensors(device), self.num_shards)
        self._check_spread(folder, device)
        return folder

    def _check_spread(self, folder: Path, device: str) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        token_ids = torch.randint(self.vocab_size, (32,), generator=generator).tolist()
        (logits,) = reference_logits(folder, [token_ids], torch.float32, device)
        spread = float(logits.std())
        if not spread >= MIN_LOGIT_STD:
            raise ValueError(
                f"{self.name}: logits have standard deviation {spread:.2f}, below {MIN_LOGIT_STD}"
            )


def _write_weights(folder: Path, tensors: dict[str, torch.Tensor], num_shards: int) -> None:
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    names = list(tensors)
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::num_shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


TINY_CHECKPOINTS: tuple[TinyCheckpoint, ...] = (
    TinyCheckpoint(name="mha-d64-tied", num_heads=4, num_kv_heads=4),
    TinyCheckpoint(
        name="gqa2-d64-untied", num_heads=4, num_kv_heads=2, tie_word_embeddings=False, num_shards=3
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
        num_shards=2,
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
