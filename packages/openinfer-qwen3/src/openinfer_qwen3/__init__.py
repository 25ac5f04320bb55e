"""Qwen3 dense models, 0.6B to 32B."""

from openinfer_qwen3.config import Qwen3Config
from openinfer_qwen3.line import LINE, Qwen3Line, Qwen3Options

__all__ = [
    # The model line, as engines find it
    "LINE",
    "Qwen3Line",
    "Qwen3Options",
    # Its configuration
    "Qwen3Config",
]
