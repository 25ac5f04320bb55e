"""The configuration of a Qwen3 checkpoint, read strictly from its config.json.

This module imports no torch, so a front process can check a checkpoint in milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openinfer_engine import ConfigReader, RopeConfig, read_rope


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Config:
    """The shape of a Qwen3 dense model.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
        num_layers: Transformer layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Dimensions of a head; num_heads * head_dim need not be hidden_size.
        rms_norm_eps: Added to the mean square.
        max_position: Longest context, in tokens.
        rope: The rotary embedding.
        tie_word_embeddings: Whether the embedding is also the output head.
        dtype: Dtype of the stored weights: "float32", "float16" or "bfloat16"; None if the
            checkpoint does not say it.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int
    rope: RopeConfig
    tie_word_embeddings: bool
    dtype: str | None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "Qwen3Config":
        """Reads a parsed config.json.

        Raises:
            UnsupportedConfig: A field is missing, malformed, or has a value that is not supported.
        """
        reader = ConfigReader(config)
        _refuse_other_models(reader)
        parsed = cls(
            vocab_size=reader.count("vocab_size"),
            hidden_size=reader.count("hidden_size"),
            intermediate_size=reader.count("intermediate_size"),
            num_layers=reader.count("num_hidden_layers"),
            num_heads=reader.count("num_attention_heads"),
            num_kv_heads=reader.count("num_key_value_heads"),
            head_dim=reader.count("head_dim"),
            rms_norm_eps=reader.positive("rms_norm_eps"),
            max_position=reader.count("max_position_embeddings"),
            rope=read_rope(reader),
            # transformers does not write a field that equals its own default, which is false.
            tie_word_embeddings=reader.flag("tie_word_embeddings"),
            dtype=reader.dtype(),
        )
        if parsed.num_heads % parsed.num_kv_heads:
            reason = f"must divide num_attention_heads = {parsed.num_heads}"
            raise reader.unsupported("num_key_value_heads", reason)
        if parsed.head_dim % 2:
            raise reader.unsupported("head_dim", "must be even to be rotated")
        return parsed


def _refuse_other_models(reader: ConfigReader) -> None:
    reader.architecture("Qwen3ForCausalLM")
    reader.refuse_quantized()
    reader.refuse_other("hidden_act", "silu")
    if reader.flag("attention_bias"):
        raise reader.unsupported("attention_bias", "only projections without bias are served")
    reader.refuse_windows(reader.count("num_hidden_layers"))
