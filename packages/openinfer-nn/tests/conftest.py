import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file


@pytest.fixture
def write_file():
    """Returns a function that writes tensors as a safetensors file."""

    def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
        save_file(tensors, path)
        return path

    return write


@pytest.fixture
def write_raw():
    """Returns a function that writes a safetensors file from any header and bytes."""

    def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
        return path

    return write
