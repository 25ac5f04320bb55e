"""Typed, strict reading of a checkpoint's config.json.

A missing field is an error; it does not get a default. If a field asks for arithmetic that the
model file does not implement, the error names the field. This module needs no torch, so a front
process can check a checkpoint.
"""

import math
from collections.abc import Mapping
from typing import Any

from openinfer_engine.errors import EngineError

DTYPES = ("float32", "float16", "bfloat16")


class UnsupportedConfig(EngineError):
    """A field of config.json is missing, malformed, or has a value that the line does not support.

    Attributes:
        field: Name of the field, dotted if it is nested.
        value: The field's value, None if it is missing.
        reason: What is wrong, or which values the line supports.
    """

    def __init__(self, field: str, value: Any, reason: str) -> None:
        super().__init__(f"{field} = {value!r}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class ConfigReader:
    """The fields of a config.json, or of an object nested in it. A null counts as missing.

    Every method raises `UnsupportedConfig` with the name of the field.
    """

    def __init__(self, fields: Mapping[str, Any], prefix: str = "") -> None:
        """Wraps parsed JSON.

        Args:
            fields: The JSON object.
            prefix: Comes before field names in messages, "rope_scaling." for a nested object.
        """
        self._fields = fields
        self._prefix = prefix

    def get(self, field: str) -> Any:
        """Returns a field of any type, None if it is missing."""
        return self._fields.get(field)

    def required(self, field: str) -> Any:
        """Returns a field of any type that must not be missing."""
        value = self.get(field)
        if value is None:
            raise self.unsupported(field, "config.json does not have this field")
        return value

    def count(self, field: str) -> int:
        """Returns a positive integer."""
        value = self.required(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.unsupported(field, "must be a positive integer")
        return value

    def positive(self, field: str) -> float:
        """Returns a positive, finite number."""
        value = self.required(field)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise self.unsupported(field, "must be a positive number")
        return float(value)

    def flag(self, field: str, *, default: bool = False) -> bool:
        """Returns true or false, `default` if the field is missing."""
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.unsupported(field, "must be true or false")
        return value

    def architecture(self, *served: str) -> str:
        """Returns the checkpoint's one architecture, which must be among those served."""
        names = self.required("architectures")
        if not isinstance(names, list) or len(names) != 1 or names[0] not in served:
            raise self.unsupported("architectures", f"this line serves {', '.join(served)} only")
        return str(names[0])

    def dtype(self) -> str | None:
        """Returns the dtype of the stored weights, None if the checkpoint does not say it."""
        field = "torch_dtype" if self.get("dtype") is None else "dtype"
        dtype = self.get(field)
        if dtype is not None and dtype not in DTYPES:
            raise self.unsupported(field, f"only {', '.join(DTYPES)} are served")
        return dtype  # type: ignore[no-any-return]

    def refuse_quantized(self) -> None:
        """Refuses a checkpoint of quantized weights."""
        for field in ("quantization_config", "compression_config"):
            self.refuse_if_set(field, "only unquantized weights are served")

    def refuse_windows(self, num_layers: int) -> None:
        """Refuses a model unless every layer has full causal attention."""
        reason = "only full attention is served"
        if self.flag("use_sliding_window"):
            raise self.unsupported("use_sliding_window", reason)
        types = self.get("layer_types")
        if types is not None and types != ["full_attention"] * num_layers:
            raise self.unsupported("layer_types", f"{reason}, in every layer")
        # transformers builds an encoder if this is false.
        if not self.flag("is_causal", default=True):
            raise self.unsupported("is_causal", "only causal attention is served")

    def refuse_if_set(self, field: str, reason: str) -> None:
        """Raises if the field has any value except null."""
        if self.get(field) is not None:
            raise self.unsupported(field, reason)

    def refuse_other(self, field: str, served: Any) -> None:
        """Raises if the field is present with a value other than `served`."""
        if self._fields.get(field, served) != served:
            raise self.unsupported(field, f"only {served} is served")

    def unsupported(self, field: str, reason: str) -> UnsupportedConfig:
        """Returns the error about a field, for the caller to raise."""
        return UnsupportedConfig(self._prefix + field, self.get(field), reason)
