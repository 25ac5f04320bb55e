import pytest
import torch

from openinfer_kernels import BackendUnavailable, LinearSpec, plan_linear


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 17])
def test_linear(backend, num_tokens, dtype, random, assert_close):
    spec = LinearSpec(in_features=96, out_features=130, dtype=dtype)
    x, weight = random(num_tokens, 96, dtype=dtype) / 8, random(130, 96, dtype=dtype)
    got = plan_linear(spec, "cpu", backend)(x, weight)
    assert_close(got, plan_linear(spec, "cpu", "reference")(x, weight))


@pytest.mark.parametrize(("num_tokens", "is_enabled"), [(1, False), (2, False), (3, True)])
def test_onednn_is_off_for_one_and_two_rows_of_bf16(num_tokens, is_enabled, monkeypatch, random):
    spec = LinearSpec(in_features=8, out_features=8, dtype=torch.bfloat16)
    linear = plan_linear(spec, "cpu")
    seen = []
    product = torch.nn.functional.linear

    def spy(x, weight):
        seen.append(torch.backends.mkldnn.enabled)
        return product(x, weight)

    monkeypatch.setattr(torch.nn.functional, "linear", spy)
    linear(random(num_tokens, 8, dtype=torch.bfloat16), random(8, 8, dtype=torch.bfloat16))
    assert seen == [is_enabled]
    assert torch.backends.mkldnn.enabled


def test_onednn_is_back_on_after_an_error():
    spec = LinearSpec(in_features=8, out_features=8, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError):
        plan_linear(spec, "cpu")(torch.zeros(1, 7, dtype=torch.bfloat16), torch.zeros(8, 8))
    assert torch.backends.mkldnn.enabled


def test_the_cpu_backend_is_for_the_cpu():
    spec = LinearSpec(in_features=8, out_features=8, dtype=torch.float32)
    with pytest.raises(BackendUnavailable, match="needs a CPU, this is cuda"):
        plan_linear(spec, "cuda", "cpu")
