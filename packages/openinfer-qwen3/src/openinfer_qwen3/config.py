"""What a Qwen3 checkpoint says about itself: config.json, read strictly.

A field that is missing is an error and not a default, and a field that asks for other arithmetic
than `model.py` does is refused by name. No torch here: checkpoints are judged before it is loaded.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from openinfer_qwen3.errors import UnsupportedConfig

_ARCHITECTURE = "Qwen3ForCausalLM"
_DTYPES = ("float32", "float16", "bfloat16")
# Per rope type: the fields it must have, and those it may have.
_ROPE_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "yarn": (("factor",), ("beta_fast", "beta_slow", "attention_factor", "truncate")),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ()),
}
_HAS_ORIGINAL_LENGTH = ("yarn", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """The rotary embedding.

    Attributes:
        type: Scaling of the frequencies.
        theta: Base of the wavelengths.
        original_max_position: Longest context of the training, for yarn and llama3.
        options: The scaling's own numbers by name, those the checkpoint gives.
    """

    type: Literal["default", "linear", "yarn", "llama3"]
    theta: float
    original_max_position: int
    options: Mapping[str, Any]


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
        max_position: Longest context.
        rope: The rotary embedding.
        tie_word_embeddings: Whether the embedding is the output head too.
        dtype: Of the stored weights: "float32", "float16" or "bfloat16"; None if it is not said.
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
            UnsupportedConfig: A field is missing, malformed, or asks for what is not served.
        """
        _refuse_other_models(config)
        parsed = cls(
            vocab_size=_count(config, "vocab_size"),
            hidden_size=_count(config, "hidden_size"),
            intermediate_size=_count(config, "intermediate_size"),
            num_layers=_count(config, "num_hidden_layers"),
            num_heads=_count(config, "num_attention_heads"),
            num_kv_heads=_count(config, "num_key_value_heads"),
            head_dim=_count(config, "head_dim"),
            rms_norm_eps=_positive("rms_norm_eps", _required(config, "rms_norm_eps")),
            max_position=_count(config, "max_position_embeddings"),
            rope=_read_rope(config),
            # transformers leaves out what equals its own default, which is False.
            tie_word_embeddings=_flag(config, "tie_word_embeddings"),
            dtype=_read_dtype(config),
        )
        if parsed.num_heads % parsed.num_kv_heads:
            reason = f"must divide num_attention_heads = {parsed.num_heads}"
            raise UnsupportedConfig("num_key_value_heads", parsed.num_kv_heads, reason)
        if parsed.head_dim % 2:
            raise UnsupportedConfig("head_dim", parsed.head_dim, "must be even to be rotated")
        return parsed


def _refuse_other_models(config: Mapping[str, Any]) -> None:
    architectures = _required(config, "architectures")
    if architectures != [_ARCHITECTURE]:
        raise UnsupportedConfig("architectures", architectures, f"only {_ARCHITECTURE} is served")
    for field in ("quantization_config", "compression_config"):
        if config.get(field) is not None:
            reason = "only unquantized weights are served"
            raise UnsupportedConfig(field, config[field], reason)
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedConfig("hidden_act", config["hidden_act"], "only silu is served")
    if _flag(config, "attention_bias"):
        raise UnsupportedConfig("attention_bias", True, "only projections without bias are served")
    # transformers makes an encoder of it.
    if config.get("is_causal") is not None and not _flag(config, "is_causal"):
        raise UnsupportedConfig("is_causal", False, "only causal attention is served")
    _refuse_sliding_window(config)


def _refuse_sliding_window(config: Mapping[str, Any]) -> None:
    reason = "only full attention is served"
    if _flag(config, "use_sliding_window"):
        raise UnsupportedConfig("use_sliding_window", True, reason)
    layer_types = config.get("layer_types")
    full = ["full_attention"] * _count(config, "num_hidden_layers")
    if layer_types is not None and layer_types != full:
        raise UnsupportedConfig("layer_types", layer_types, f"{reason}, in every layer")


def _read_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Reads `rope_parameters`, or the older pair of `rope_theta` and `rope_scaling`."""
    field, scaling = _rope_fields(config)
    old_type = scaling.pop("type", "default")
    rope_type = scaling.pop("rope_type", old_type)
    if not isinstance(rope_type, str) or rope_type not in _ROPE_FIELDS:
        known = ", ".join(_ROPE_FIELDS)
        raise UnsupportedConfig(f"{field}.rope_type", rope_type, f"only {known} are served")
    theta = scaling.pop("rope_theta", None)
    theta_field = "rope_theta" if theta is None else f"{field}.rope_theta"
    theta = _positive(theta_field, _required(config, "rope_theta") if theta is None else theta)
    original = max_position = _count(config, "max_position_embeddings")
    if rope_type in _HAS_ORIGINAL_LENGTH:
        name = "original_max_position_embeddings"
        length = scaling.pop(name, None)
        original = max_position if length is None else _as_count(f"{field}.{name}", length)
    return RopeConfig(
        type=cast(Any, rope_type),
        theta=theta,
        original_max_position=original,
        options=_rope_options(field, rope_type, scaling),
    )


def _rope_fields(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The field that holds the scaling, and a copy of what it holds."""
    # transformers lets these override or fill the scaling's own.
    for name in ("original_max_position_embeddings", "partial_rotary_factor"):
        if config.get(name) is not None:
            raise UnsupportedConfig(name, config[name], "not served beside the rope fields")
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if new and old and new != old:
        raise UnsupportedConfig("rope_scaling", old, f"rope_parameters says otherwise: {new!r}")
    field, scaling = ("rope_parameters", new) if new else ("rope_scaling", old)
    if not isinstance(scaling, Mapping):
        raise UnsupportedConfig(field, scaling, "must be an object")
    return field, dict(scaling)


def _rope_options(field: str, rope_type: str, scaling: dict[str, Any]) -> dict[str, Any]:
    """The scaling's own numbers, checked."""
    # transformers writes these for every type; they change nothing when they say this.
    if scaling.get("partial_rotary_factor", 1.0) == 1.0:
        scaling.pop("partial_rotary_factor", None)
    if rope_type == "default":
        scaling.pop("original_max_position_embeddings", None)
    required, optional = _ROPE_FIELDS[rope_type]
    for name in required:
        if scaling.get(name) is None:
            raise UnsupportedConfig(f"{field}.{name}", None, f"rope type {rope_type} needs it")
    options: dict[str, Any] = {}
    for name, value in scaling.items():
        if name not in required + optional:
            reason = f"rope type {rope_type} has no such field here"
            raise UnsupportedConfig(f"{field}.{name}", value, reason)
        if name == "truncate" and value is not None:
            options[name] = _as_flag(f"{field}.{name}", value)
        elif value is not None:
            options[name] = _positive(f"{field}.{name}", value)
    if rope_type == "llama3" and options["high_freq_factor"] <= options["low_freq_factor"]:
        reason = "must be more than low_freq_factor"
        raise UnsupportedConfig(f"{field}.high_freq_factor", options["high_freq_factor"], reason)
    return options


def _read_dtype(config: Mapping[str, Any]) -> str | None:
    field = "torch_dtype" if config.get("dtype") is None else "dtype"
    dtype = config.get(field)
    if dtype is not None and dtype not in _DTYPES:
        raise UnsupportedConfig(field, dtype, f"only {', '.join(_DTYPES)} are served")
    return dtype


def _required(config: Mapping[str, Any], field: str) -> Any:
    if config.get(field) is None:
        raise UnsupportedConfig(field, None, "config.json does not have this field")
    return config[field]


def _count(config: Mapping[str, Any], field: str) -> int:
    return _as_count(field, _required(config, field))


def _as_count(field: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedConfig(field, value, "must be a positive integer")
    return value


def _positive(field: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise UnsupportedConfig(field, value, "must be a positive number")
    return float(value)


def _flag(config: Mapping[str, Any], field: str) -> bool:
    value = config.get(field)
    return value is not None and _as_flag(field, value)


def _as_flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnsupportedConfig(field, value, "must be true or false")
    return value
