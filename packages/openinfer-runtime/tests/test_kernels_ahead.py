"""The key under which the kernels of an executor are stored."""

import importlib
from dataclasses import replace
from functools import partial

import pytest
import torch

from openinfer_engine import EngineOptions, LaunchSpec
from openinfer_qwen3 import LINE
from openinfer_runtime import BuildOptions
from openinfer_runtime.startup._kernels_ahead import kernel_list_identity

_OPTIONS = BuildOptions(
    device=torch.device("cuda"), dtype=torch.float32, block_size=16, max_model_len=128
)


def build(_):
    raise AssertionError("an identity needs no model")


class Builder:
    def __call__(self, _):
        raise AssertionError("an identity needs no model")


def identity(folder, build=build, line_options=None, options=_OPTIONS, **engine):
    spec = LaunchSpec(
        model_path=str(folder),
        model_line="qwen3",
        engine=EngineOptions(device="cpu", **engine),
        line_options=line_options or {},
    )
    return kernel_list_identity(spec, LINE.plan(spec), build, options)


@pytest.mark.parametrize(
    "change",
    [
        {"max_num_seqs": 5},
        {"max_num_batched_tokens": 600},
        {"max_model_len": 100},
        {"line_options": {"attention_backend": "triton"}},
        *(
            {"options": replace(_OPTIONS, **change)}
            for change in (
                {"dtype": torch.bfloat16},
                {"block_size": 32},
                {"quantization": "int8"},
                {"max_model_len": 64},
            )
        ),
    ],
    ids=str,
)
def test_options_that_change_launches_change_the_identity(checkpoint, change):
    folder = checkpoint()
    assert identity(folder) == identity(folder)
    assert identity(folder) != identity(folder, **change)


def test_every_build_option_is_in_the_identity():
    """A field declared with repr=False would be missing."""
    assert all(f"{name}=" in repr(_OPTIONS) for name in BuildOptions.__dataclass_fields__)


@pytest.mark.parametrize("wrapped", [build, partial(build), partial(partial(build)), Builder()])
def test_a_build_may_be_any_callable(checkpoint, wrapped):
    assert identity(checkpoint(), wrapped)


def test_a_model_line_may_be_a_single_module(checkpoint, tmp_path, monkeypatch):
    source = tmp_path / "one_file_line.py"
    source.write_text("def build(options): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    line = importlib.import_module("one_file_line")
    before = identity(checkpoint(), line.build)
    assert before == identity(checkpoint(), partial(line.build))
    source.write_text("def build(options): ...  # another\n")
    assert before != identity(checkpoint(), line.build)
