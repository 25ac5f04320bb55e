import pytest
import torch

from openinfer_kernels import SiluAndMulSpec, plan_silu_and_mul


@pytest.mark.parametrize("backend", ["native", "torch", "triton"])
@pytest.mark.parametrize("shape", [(1, 96), (5, 1500), (0, 96)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_silu_and_mul(backend, shape, dtype, random, assert_close, triton_device):
    device = triton_device if backend == "triton" else "cpu"
    num_tokens, size = shape
    spec = SiluAndMulSpec(intermediate_size=size, dtype=dtype)
    gate_up = random(num_tokens, 2 * size, dtype=dtype)
    got = plan_silu_and_mul(spec, device, backend)(gate_up.to(device))
    assert_close(got, plan_silu_and_mul(spec, "cpu", "reference")(gate_up))


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_silu_far_from_zero(backend, assert_close):
    gate = torch.tensor([[-3e38, -89, -88, -80, 80, 3e38, torch.inf, -torch.inf, torch.nan]])
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1).bfloat16()
    spec = SiluAndMulSpec(intermediate_size=gate.shape[1], dtype=torch.bfloat16)
    got = plan_silu_and_mul(spec, "cpu", backend)(gate_up)
    expected = plan_silu_and_mul(spec, "cpu", "reference")(gate_up)
    assert_close(got[:, :-2], expected[:, :-2])
    assert got[:, -2:].isnan().all()
    assert expected[:, -2:].isnan().all()
