"""The rotary embedding of a config.json: both spellings and four scalings, read without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from openinfer_engine.lines._config_reader import ConfigReader

# By rope type: the fields it must have, and those it may have.
_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "yarn": (("factor",), ("beta_fast", "beta_slow", "attention_factor", "truncate")),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ()),
}
_HAS_ORIGINAL_LENGTH = ("yarn", "llama3")
_ORIGINAL_LENGTH = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """A rotary embedding.

    Attributes:
        type: Scaling of the frequencies.
        theta: Base of the wavelengths.
        original_max_position: Longest context of the training in tokens, for yarn and llama3.
        options: The scaling's parameters that the checkpoint sets, by name.
    """

    type: Literal["default", "linear", "yarn", "llama3"]
    theta: float
    original_max_position: int
    options: Mapping[str, Any]


def read_rope(config: ConfigReader) -> RopeConfig:
    """Reads `rope_parameters`, or the older pair of `rope_theta` and `rope_scaling`.

    Raises:
        UnsupportedConfig: A field is missing, malformed, or names a scaling that is not served.
    """
    fields, prefix = _scaling_fields(config)
    scaling = ConfigReader(fields, prefix)
    rope_type = fields.pop("rope_type", fields.pop("type", "default"))
    if not isinstance(rope_type, str) or rope_type not in _FIELDS:
        named = ConfigReader({"rope_type": rope_type}, prefix)
        raise named.unsupported("rope_type", f"only {', '.join(_FIELDS)} are served")
    has_theta = scaling.get("rope_theta") is not None
    theta = (scaling if has_theta else config).positive("rope_theta")
    fields.pop("rope_theta", None)
    original = config.count("max_position_embeddings")
    if rope_type in _HAS_ORIGINAL_LENGTH:
        if scaling.get(_ORIGINAL_LENGTH) is not None:
            original = scaling.count(_ORIGINAL_LENGTH)
        fields.pop(_ORIGINAL_LENGTH, None)
    return RopeConfig(
        type=cast(Any, rope_type),
        theta=theta,
        original_max_position=original,
        options=_options(rope_type, fields, scaling),
    )


def _scaling_fields(config: ConfigReader) -> tuple[dict[str, Any], str]:
    """Returns a copy of the scaling's fields, and the prefix of their names in messages."""
    # In transformers these override or complete the scaling's own fields.
    for field in (_ORIGINAL_LENGTH, "partial_rotary_factor"):
        config.refuse_if_set(field, "not served together with the rope fields")
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if new and old and new != old:
        raise config.unsupported("rope_scaling", f"rope_parameters differs from it: {new!r}")
    field, scaling = ("rope_parameters", new) if new else ("rope_scaling", old)
    if not isinstance(scaling, Mapping):
        raise config.unsupported(field, "must be an object")
    return dict(scaling), f"{field}."


def _options(rope_type: str, fields: dict[str, Any], scaling: ConfigReader) -> dict[str, Any]:
    """Checks the scaling's parameters and returns them; `scaling` is a reader of `fields`."""
    # transformers writes these for every type. With these values they change nothing.
    if fields.get("partial_rotary_factor", 1.0) == 1.0:
        fields.pop("partial_rotary_factor", None)
    if rope_type == "default":
        fields.pop(_ORIGINAL_LENGTH, None)
    required, optional = _FIELDS[rope_type]
    for name in required:
        if scaling.get(name) is None:
            raise scaling.unsupported(name, f"rope type {rope_type} needs it")
    options: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in required + optional:
            raise scaling.unsupported(name, f"rope type {rope_type} does not have this field")
        if value is not None:
            options[name] = scaling.flag(name) if name == "truncate" else scaling.positive(name)
    if rope_type == "llama3" and options["high_freq_factor"] <= options["low_freq_factor"]:
        raise scaling.unsupported("high_freq_factor", "must be more than low_freq_factor")
    return options
