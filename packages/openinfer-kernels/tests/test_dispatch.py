import pytest
import torch

from openinfer_kernels import (
    BACKEND_ORDER,
    BackendUnavailable,
    LinearSpec,
    SiluAndMulSpec,
    describe,
    plan_linear,
    plan_silu_and_mul,
)
from openinfer_kernels.dispatch._choice import choose
from openinfer_kernels.gpu import _support as triton_support

SPEC = SiluAndMulSpec(intermediate_size=8, dtype=torch.float32)


def test_a_backend_that_does_not_exist_is_the_callers_mistake():
    known = "native, reference, torch, triton"
    with pytest.raises(ValueError, match=f"no backend 'flash'; it has {known}"):
        plan_silu_and_mul(SPEC, "cpu", "flash")


def test_triton_without_a_gpu_is_unavailable(monkeypatch):
    monkeypatch.setattr(triton_support.triton.knobs.runtime, "interpret", False)
    with pytest.raises(BackendUnavailable) as caught:
        plan_silu_and_mul(SPEC, "cpu", "triton")
    assert (caught.value.op, caught.value.backend) == ("silu_and_mul", "triton")
    assert "needs a CUDA device" in caught.value.reason


def test_an_unknown_dtype_falls_through_to_torch_on_cuda():
    reports = describe(
        "cuda", {"silu_and_mul": SiluAndMulSpec(intermediate_size=8, dtype=torch.float64)}
    )
    report = {report.op: report for report in reports}["silu_and_mul"]
    assert report.backend == "torch"
    assert "no Triton kernel for torch.float64" in report.unavailable["triton"]


def test_describe_names_every_op_and_why_not():
    for device in ("cpu", "cuda"):
        reports = describe(device)
        quantized = ["linear int8", "linear int4"]
        assert [report.op for report in reports] == [*BACKEND_ORDER, *quantized]
        for report in reports:
            is_missing = report.op in quantized and report.backend is None
            assert is_missing or report.backend in report.available
            assert not is_missing or report.unavailable
            assert all(report.unavailable.values())
            assert not set(report.available) & set(report.unavailable)
    chosen = {device: {r.op: r.backend for r in describe(device)} for device in ("cpu", "cuda")}
    assert chosen["cpu"]["linear"] in ("native", "cpu")
    assert chosen["cpu"]["linear int4"] in ("native", "cpu")
    assert chosen["cuda"]["linear int4"] is None


def test_auto_on_another_device_still_runs():
    spec = LinearSpec(in_features=2, out_features=2, dtype=torch.float32)
    x = torch.zeros(1, 2, device="meta")
    assert plan_linear(spec, "meta")(x, (torch.zeros(2, 2, device="meta"),)).shape == (1, 2)


def test_without_a_c_compiler_and_without_its_cache_triton_is_passed_over(monkeypatch):
    def no_driver(_):
        raise RuntimeError("Failed to find C compiler.\nPlease")

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(triton_support.shutil, "which", lambda _: None)
    monkeypatch.setattr(
        triton_support, "driver", type("Driver", (), {"active": property(no_driver)})()
    )
    monkeypatch.setattr(
        triton_support, "_why_no_launchers", triton_support._why_no_launchers.__wrapped__
    )
    choice = choose("silu_and_mul", SPEC, torch.device("cuda"))
    assert choice.backend == "torch"
    assert "install gcc" in choice.passed_over["triton"]
    assert "Failed to find C compiler.)" in choice.passed_over["triton"]
