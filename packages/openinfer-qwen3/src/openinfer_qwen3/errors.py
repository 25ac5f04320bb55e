"""Errors of the Qwen3 line.

```
Qwen3Error
└── UnsupportedConfig     a configuration this model file does not serve exactly
```
"""

from typing import Any


class Qwen3Error(Exception):
    """Root of every error this package raises on purpose."""


class UnsupportedConfig(Qwen3Error):
    """A field of config.json asks for what this model file does not do, or is missing.

    Attributes:
        field: Name of the field, dotted where it is nested.
        value: What the field holds, None if it is missing.
        reason: What would be served, in words.
    """

    def __init__(self, field: str, value: Any, reason: str) -> None:
        super().__init__(f"{field} = {value!r}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason
