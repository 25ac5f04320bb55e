"""The built-in checkpoint: its folder, name and description."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder that comes with a package.

    Attributes:
        name: given by users in place of a folder.
        description: one sentence for a list of models.
    """

    name: str
    description: str

    def path(self) -> Path:
        """Returns the folder with config, weights and tokenizer. It is read-only."""
        return Path(__file__).with_name("checkpoint")


CHECKPOINT = Checkpoint(
    name="tiny",
    description="A Qwen3 checkpoint of five million parameters for demonstrations and tests.",
)
"""The checkpoint of the entry point `tiny` in `openinfer.checkpoints`."""
