import sys
from dataclasses import replace

import pytest
import torch

from openinfer_contract import PluginError
from openinfer_kernels import (
    BackendUnavailable,
    LinearSpec,
    SiluAndMulSpec,
    describe,
    plan_linear,
    plan_silu_and_mul,
)
from openinfer_kernels.compile_gate import compile_cases
from openinfer_kernels.dispatch import (
    _ops,
    backend_module,
    choose,
    find_op,
    op_names,
    outside_digest,
)
from openinfer_kernels.dispatch._choice import _announce
from openinfer_kernels.gpu import _support as triton_support

SPEC = SiluAndMulSpec(intermediate_size=8, dtype=torch.float32)

# An outside package with an op, and with a back end for an op of this package.
_OP = """
from dataclasses import dataclass

from openinfer_kernels import backend_module


@dataclass(frozen=True)
class ScaleSpec:
    factor: float


ORDER = {"cpu": ("torch",), "cuda": ("torch",)}
EXAMPLES = {"": ScaleSpec(2.0)}


def plan_scale(spec, device, backend="auto"):
    return backend_module("scale", spec, device, backend).plan(spec, device)
"""
_SCALE = """
def supports(spec, device):
    return None


def plan(spec, device):
    return lambda x: x * spec.factor
"""
_FAST = """
from openinfer_kernels import Regime

TRIED_BEFORE = {"cpu": "native", "cuda": "triton"}


def supports(spec, device):
    return None if spec.intermediate_size == 8 else "it is written for 8 features"


def plan(spec, device):
    return lambda gate_up: "fast"


def regimes(spec, device):
    return [
        Regime(rows="1 row", kernel="fast_one_row"),
        Regime(rows="from 2 rows on", kernel="fast_rows", why_not="it needs another GPU"),
    ]


def compile_cases():
    return ["a case"]
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with these entry points, and the package `outside`, on the path."""
    folder = tmp_path / "outside"
    (folder / "scale").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "scale" / "__init__.py").write_text(_OP)
    (folder / "scale" / "_torch.py").write_text(_SCALE)
    (folder / "fast.py").write_text(_FAST)
    (folder / "late.py").write_text('TRIED_BEFORE = {"cpu": "nothing"}\nsupports = plan = None\n')
    monkeypatch.syspath_prepend(tmp_path)

    def write(**points):
        info = tmp_path / "outside-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
        rows = "".join(f"{point.replace('__', '.')} = {to}\n" for point, to in points.items())
        (info / "entry_points.txt").write_text(f"[openinfer.kernels]\n{rows}")
        _forget_ops()

    yield write
    _forget_ops()
    for name in [name for name in sys.modules if name.partition(".")[0] == "outside"]:
        del sys.modules[name]


def _forget_ops():
    find_op.cache_clear()
    _ops._installed_names.cache_clear()


def _reported(device="cpu", specs=None):
    return {report.op: report for report in describe(device, specs)}


def test_a_package_brings_an_op(install):
    install(scale="outside.scale")
    assert op_names()[-1] == "scale"
    assert _reported()["scale"].backend == "torch"
    from outside.scale import ScaleSpec, plan_scale

    assert plan_scale(ScaleSpec(3.0), "cpu")(torch.ones(())) == 3
    with pytest.raises(ValueError, match=r"'triton'.*torch"):
        plan_scale(ScaleSpec(3.0), "cpu", "triton")


def test_a_package_brings_a_back_end(install, caplog):
    install(silu_and_mul__fast="outside.fast")
    assert find_op("silu_and_mul").order_on("cuda")[:2] == ("fast", "triton")
    assert plan_silu_and_mul(SPEC, "cpu")(None) == "fast"
    wide = replace(SPEC, intermediate_size=16)
    assert choose("silu_and_mul", wide, torch.device("cpu")).passed_over["fast"]
    assert plan_silu_and_mul(wide, "cpu")(torch.zeros(1, 32)).shape == (1, 16)
    report = _reported(specs={"silu_and_mul": SPEC})["silu_and_mul"]
    assert (report.backend, report.available[0]) == ("fast", "fast")
    assert [regime.kernel for regime in report.regimes] == ["fast_one_row", "fast_rows"]
    assert "a case" in compile_cases(["silu_and_mul"])
    assert "a case" not in compile_cases(["rms_norm"])


def test_a_choice_is_logged_once_with_its_kernels_and_what_was_passed_over(install, caplog):
    install(silu_and_mul__fast="outside.fast")
    _announce.cache_clear()
    caplog.set_level("INFO")
    for _ in range(2):
        backend_module("silu_and_mul", SPEC, "cpu", "auto")
    (record,) = (r for r in caplog.records if "silu_and_mul on cpu: fast" in r.message)
    for part in ("1 row: fast_one_row", "from 2 rows on: fast_rows", "needs another GPU"):
        assert part in record.message
    backend_module("silu_and_mul", replace(SPEC, intermediate_size=16), "cpu", "auto")
    assert "not fast: it is written for 8 features" in caplog.records[-1].message


@pytest.mark.parametrize("target", ["outside.nothing", "outside.scale:ORDER", "outside.late"])
def test_a_broken_back_end_is_reported_and_passed_over(install, target):
    install(silu_and_mul__fast=target)
    report = _reported()["silu_and_mul"]
    assert report.backend not in (None, "fast")
    assert "fast" in report.unavailable
    with pytest.raises(BackendUnavailable):
        plan_silu_and_mul(SPEC, "cpu", "fast")


def test_a_broken_op_is_reported_and_the_others_run(install):
    install(scale="outside.nothing")
    assert "outside 1.0" in _reported()["scale"].unavailable["entry point"]
    assert _reported()["rms_norm"].backend is not None
    with pytest.raises(PluginError):
        find_op("scale")


def test_a_back_end_of_this_package_is_not_replaced(install, caplog):
    install(silu_and_mul__torch="outside.fast", silu_and_mul="outside.scale")
    assert plan_silu_and_mul(SPEC, "cpu", "torch")(torch.zeros(1, 16)).shape == (1, 8)
    assert "silu_and_mul.torch" in caplog.text


def test_the_sources_of_installed_packages_have_a_digest(install, tmp_path):
    """The digest is part of the key of an executor's kernel list."""
    before = outside_digest()
    install(silu_and_mul__fast="outside.fast", scale="outside.scale")
    installed = outside_digest()
    (tmp_path / "outside" / "scale" / "_torch.py").write_text(_SCALE + "# another kernel")
    assert len({before, installed, outside_digest()}) == 3


def test_every_op_states_an_order_for_both_kinds_of_device_and_examples():
    for name in op_names():
        op = find_op(name)
        assert set(op.order) == {"cpu", "cuda"}, name
        assert op.examples, name


def test_a_backend_that_does_not_exist_is_the_callers_mistake():
    with pytest.raises(ValueError, match=r"'flash'.*native, reference, torch, triton"):
        plan_silu_and_mul(SPEC, "cpu", "flash")


def test_triton_without_a_gpu_is_unavailable(monkeypatch):
    monkeypatch.setattr(triton_support.triton.knobs.runtime, "interpret", False)
    with pytest.raises(BackendUnavailable) as caught:
        plan_silu_and_mul(SPEC, "cpu", "triton")
    assert (caught.value.op, caught.value.backend) == ("silu_and_mul", "triton")
    assert "needs a CUDA device" in caught.value.reason


def test_an_unknown_dtype_falls_through_to_torch_on_cuda():
    spec = SiluAndMulSpec(intermediate_size=8, dtype=torch.float64)
    report = _reported("cuda", {"silu_and_mul": spec})["silu_and_mul"]
    assert report.backend == "torch"
    assert "no Triton kernel for torch.float64" in report.unavailable["triton"]


def test_describe_names_every_op_and_why_not():
    quantized = ["linear int8", "linear int4"]
    for device in ("cpu", "cuda"):
        reports = describe(device)
        assert {report.op for report in reports} == {*op_names(), *quantized}
        assert len({report.op for report in reports}) == len(reports)
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
