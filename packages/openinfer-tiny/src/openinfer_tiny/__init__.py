"""The built-in model: a small Qwen3 checkpoint that talks and calls tools."""

from ._checkpoint import CHECKPOINT, Checkpoint

__all__ = [
    "CHECKPOINT",
    "Checkpoint",
]
