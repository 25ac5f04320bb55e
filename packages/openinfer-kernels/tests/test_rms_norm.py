import pytest

from openinfer_kernels import RMSNormSpec, plan_rms_norm

BACKENDS = ["native", "torch", "triton"]


def _device(backend: str, triton_device: str) -> str:
    return triton_device if backend == "triton" else "cpu"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape", [(1, 64), (3, 1000), (7, 5120), (0, 64)], ids=lambda s: "x".join(map(str, s))
)
def test_rms_norm(backend, shape, dtype, random, assert_close, triton_device):
    device = _device(backend, triton_device)
    spec = RMSNormSpec(hidden_size=shape[-1], eps=1e-6, dtype=dtype)
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    got = plan_rms_norm(spec, device, backend)(x.to(device), weight.to(device))
    assert_close(got, plan_rms_norm(spec, "cpu", "reference")(x, weight))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rms_norm_of_heads_within_a_fused_row(backend, dtype, random, assert_close, triton_device):
    device = _device(backend, triton_device)
    spec = RMSNormSpec(hidden_size=64, eps=1e-6, dtype=dtype)
    heads, weight = random(5, 9, 64, dtype=dtype)[:, 2:5], random(64, dtype=dtype)
    assert not heads.is_contiguous()
    on_device = random(5, 9, 64, dtype=dtype).to(device)
    on_device[:, 2:5] = heads.to(device)
    got = plan_rms_norm(spec, device, backend)(on_device[:, 2:5], weight.to(device))
    assert got.is_contiguous()
    assert_close(got, plan_rms_norm(spec, "cpu", "reference")(heads, weight))
