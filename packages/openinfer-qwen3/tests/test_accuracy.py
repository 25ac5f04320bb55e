"""Every shape on every path against transformers, and reruns against each other."""

import numpy as np
import pytest
import torch

from openinfer_testing.torch import TINY_CHECKPOINTS, run_gate


@pytest.mark.parametrize("shape", [shape.name for shape in TINY_CHECKPOINTS])
def test_float32_is_what_transformers_computes(shape, checkpoint, harness, way, prompts):
    folder = checkpoint(shape)
    model = harness(folder)
    run_gate(folder, lambda ids: way(model, ids), prompts).check()


@pytest.mark.parametrize("shape", [shape.name for shape in TINY_CHECKPOINTS])
def test_bfloat16_is_as_good_as_transformers(shape, checkpoint, harness, way, prompts):
    folder = checkpoint(shape)
    model = harness(folder, torch.bfloat16)
    run_gate(folder, lambda ids: way(model, ids), prompts, torch.bfloat16).check()


@pytest.mark.parametrize("shape", ["gqa2-d64-fp16", "gqa2-yarn"])
def test_float16_is_as_good_as_transformers(shape, checkpoint, harness, way, prompts):
    folder = checkpoint(shape)
    model = harness(folder, torch.float16)
    run_gate(folder, lambda ids: way(model, ids), prompts, torch.float16).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_long_decode_is_what_transformers_computes(
    dtype, checkpoint, harness, long_way, long_prompts, long_shape
):
    folder = checkpoint(long_shape)
    model = harness(folder, dtype)
    run_gate(folder, lambda ids: long_way(model, ids), long_prompts, dtype).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ["mha-d64-tied", "odd7-mqa-d64", "gqa2-yarn"])
def test_layers_as_forward_is_written_are_what_transformers_computes(
    shape, dtype, checkpoint, harness, way, prompts
):
    folder = checkpoint(shape)
    model = harness(folder, dtype, is_fused=False)
    run_gate(folder, lambda ids: way(model, ids), prompts, dtype).check()


@pytest.mark.parametrize("shape", ["mha-d64-tied", "odd7-mqa-d64"])
def test_fused_layers_are_the_layers_as_written(shape, checkpoint, harness, way, prompts):
    """They are bit-identical in float32, where a CPU runs the parts of each fused op in turn."""
    folder = checkpoint(shape)
    fused, written = (
        way(harness(folder, is_fused=is_fused), prompts) for is_fused in (True, False)
    )
    for a, b in zip(fused, written, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
def test_every_attention_backend_passes(backend, checkpoint, harness, way, prompts):
    folder = checkpoint("odd7-mqa-d64")
    model = harness(folder, attention_backend=backend)
    run_gate(folder, lambda ids: way(model, ids), prompts).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rerun_is_bit_identical(dtype, checkpoint, harness, way, prompts):
    folder = checkpoint("gqa2-yarn")
    first = way(harness(folder, dtype), prompts)
    second = way(harness(folder, dtype), prompts)
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a, b)
