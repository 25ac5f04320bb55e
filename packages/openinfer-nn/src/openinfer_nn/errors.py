"""Errors of the model toolkit.

```
ModelError
└── CheckpointError       a checkpoint is damaged, or belongs to another model
```
"""

from pathlib import Path


class ModelError(Exception):
    """Root of this package's errors."""


class CheckpointError(ModelError):
    """A checkpoint cannot be loaded.

    Attributes:
        path: The file, or the folder if no single file is at fault.
        tensor: Name of the tensor in the checkpoint, None if the whole file is at fault.
        reason: What is wrong.
    """

    def __init__(self, path: Path, tensor: str | None, reason: str) -> None:
        where = f"{path}" if tensor is None else f"{path}, tensor {tensor!r}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.tensor = tensor
        self.reason = reason
