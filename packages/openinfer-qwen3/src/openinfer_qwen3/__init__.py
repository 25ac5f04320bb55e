"""Qwen3 dense models, 0.6B to 32B."""

from openinfer_qwen3.config import Qwen3Config, RopeConfig
from openinfer_qwen3.errors import Qwen3Error, UnsupportedConfig
from openinfer_qwen3.line import LINE, Qwen3Line, Qwen3Options

__all__ = [
    # The line, as engines find it
    "LINE",
    "Qwen3Line",
    "Qwen3Options",
    # Configuration
    "Qwen3Config",
    "RopeConfig",
    # Errors
    "Qwen3Error",
    "UnsupportedConfig",
]
