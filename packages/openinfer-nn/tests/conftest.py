import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file


@pytest.fixture
def write_file():
    """Writes tensors as a safetensors file."""

    def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
        save_file(tensors, path)
        return path

    return write


@pytest.fixture
def write_raw():
    """Writes a safetensors file from a header and bytes, sound or not."""

    def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
        return path

    return write
