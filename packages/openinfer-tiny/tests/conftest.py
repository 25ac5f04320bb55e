import importlib.util
import json
import struct
import sys
from pathlib import Path

import pytest

from openinfer_tiny import CHECKPOINT


@pytest.fixture(scope="session")
def folder():
    return CHECKPOINT.path()


@pytest.fixture(scope="session")
def config(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="session")
def tensors(folder):
    """Returns the header of model.safetensors: dtype, shape and offsets by name."""
    with (folder / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header


@pytest.fixture(scope="session")
def tokenizer(folder):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def training():
    """Imports the package of the recipe, which is outside `src` and not installed."""
    path = Path(__file__).parents[1] / "training"
    spec = importlib.util.spec_from_file_location(
        "tiny_training", path / "__init__.py", submodule_search_locations=[str(path)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["tiny_training"] = module
    spec.loader.exec_module(module)
    return module
