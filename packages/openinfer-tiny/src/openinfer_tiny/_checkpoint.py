"""Where the checkpoint lies, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder that comes with a package.

    Attributes:
        name: what the user types instead of a folder.
        description: one sentence for a list of models.
    """

    name: str
    description: str

    def path(self) -> Path:
        """Returns the folder of config, weights and tokenizer; read it, never write."""
        return Path(__file__).with_name("checkpoint")


CHECKPOINT = Checkpoint(
    name="tiny",
    description="A Qwen3 checkpoint of five million parameters for demonstrations and tests.",
)
"""The checkpoint of the entry point `tiny` in `openinfer.checkpoints`."""
