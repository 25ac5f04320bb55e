"""The accuracy gate on a GPU: the same model file with other back ends."""

import pytest
import torch

from openinfer_testing.torch import run_gate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES = ["gqa2-d64-untied", "gqa4-d128-tied", "odd7-mqa-d64", "gqa2-yarn"]


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_cuda_is_what_transformers_computes(
    shape, dtype, backend, checkpoint, harness, way, prompts
):
    folder = checkpoint(shape)
    model = harness(folder, dtype, device="cuda", attention_backend=backend)
    run_gate(folder, lambda ids: way(model, ids), prompts, dtype).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ["gqa2-d64-untied", "gqa2-yarn"])
def test_layers_as_forward_is_written_are_what_transformers_computes(
    shape, dtype, checkpoint, harness, way, prompts
):
    folder = checkpoint(shape)
    model = harness(folder, dtype, device="cuda", is_fused=False)
    run_gate(folder, lambda ids: way(model, ids), prompts, dtype).check()
