"""Errors of the model toolkit.

```
ModelError
└── CheckpointError       a checkpoint is damaged, or is not this model's
```
"""

from pathlib import Path


class ModelError(Exception):
    """Root of every error this package raises on purpose."""


class CheckpointError(ModelError):
    """A checkpoint cannot be loaded.

    Attributes:
        path: The file, or the folder where no one file is at fault.
        tensor: Name of the tensor in the checkpoint, None where it is about the whole file.
        reason: What is wrong, in words.
    """

    def __init__(self, path: Path, tensor: str | None, reason: str) -> None:
        where = f"{path}" if tensor is None else f"{path}, tensor {tensor!r}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.tensor = tensor
        self.reason = reason
