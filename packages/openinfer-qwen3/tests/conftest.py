import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from openinfer_qwen3.config import Qwen3Config
from openinfer_qwen3.model import Qwen3Model
from openinfer_testing.torch import (
    MODEL_PATHS,
    TINY_CHECKPOINTS,
    ModelHarness,
    TinyCheckpoint,
    decoded_at_length,
)

BLOCK_SIZE = 16


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Callable[[str], Path]:
    """Returns the folder of a tiny checkpoint by name or shape; each is written once."""
    root = tmp_path_factory.mktemp("tiny")
    shapes = {shape.name: shape for shape in TINY_CHECKPOINTS}

    def write(shape: str | TinyCheckpoint) -> Path:
        shape = shapes[shape] if isinstance(shape, str) else shape
        folder = root / shape.name
        return folder if folder.exists() else shape.write(folder)

    return write


@pytest.fixture
def harness():
    """Returns a function that loads a model from a folder, ready to step."""

    def load(folder: Path, dtype=torch.float32, *, device="cpu", **options) -> ModelHarness:
        config = Qwen3Config.from_dict(json.loads((folder / "config.json").read_text()))

        def build():
            return Qwen3Model(config, device=device, dtype=dtype, block_size=BLOCK_SIZE, **options)

        return ModelHarness(folder, build, device=device, block_size=BLOCK_SIZE)

    return load


@pytest.fixture(params=list(MODEL_PATHS))
def way(request):
    """Returns one way to run sequences through a model."""
    return MODEL_PATHS[request.param]


@pytest.fixture
def ways():
    return MODEL_PATHS


@pytest.fixture
def long_way():
    """Returns a way for sequences that a decode kernel splits among several tasks."""
    return decoded_at_length


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Returns sequences of odd and even lengths, on both sides of block boundaries."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(320, (n,), generator=generator).tolist() for n in (33, 2, 16, 50)]


@pytest.fixture(scope="session")
def long_prompts() -> list[list[int]]:
    """Returns sequences of 717 and 270 tokens; decode kernels split a sequence after 256."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(320, (n,), generator=generator).tolist() for n in (717, 270)]


@pytest.fixture(scope="session")
def long_shape() -> TinyCheckpoint:
    return TinyCheckpoint(name="gqa2-d64-long", tie_word_embeddings=False, max_position=1024)
