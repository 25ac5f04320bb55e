"""The built-in model: a small Qwen3 checkpoint that answers in English sentences."""

from ._checkpoint import CHECKPOINT, Checkpoint

__all__ = [
    "CHECKPOINT",
    "Checkpoint",
]
