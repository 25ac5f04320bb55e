from dataclasses import replace

import pytest
import torch

from openinfer_kernels import (
    BackendUnavailable,
    FusedLinearSpec,
    LinearSpec,
    dequantize_weight,
    plan_fused_linear,
    quantize_weight,
)
from openinfer_kernels.ops.fused_linear import (
    _triton,
    _triton_few_rows,
    _triton_one_row,
    _tuning,
)
from openinfer_kernels.ops.fused_linear._tuning import FewRowsSizes, OneRowSizes

# Triton's interpreter converts loaded loop bounds in a way that numpy has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
PARTS = {
    "plain": {},
    "norm": {"norm_eps": 1e-6},
    "norm-gate": {"norm_eps": 1e-6, "is_gated": True},
    "residual": {"adds_residual": True},
    "everything": {"norm_eps": 1e-6, "is_gated": True, "adds_residual": True},
}


def _spec(parts, dtype, num_in=96, num_out=96):
    linear = LinearSpec(in_features=num_in, out_features=num_out, dtype=dtype)
    return FusedLinearSpec(linear=linear, **parts)


def _inputs(spec, num_rows, random):
    dtype, of = spec.linear.dtype, spec.linear
    weight = random(of.out_features, of.in_features, dtype=torch.float32) * of.in_features**-0.5
    return {
        "x": random(num_rows, of.in_features, dtype=dtype) * 3,
        "weight": weight.to(dtype),
        "norm_weight": random(of.in_features, dtype=dtype) if spec.norm_eps else None,
        "residual": random(num_rows, spec.num_outputs, dtype=dtype) if spec.adds_residual else None,
    }


def _run(spec, inputs, device, backend):
    op = plan_fused_linear(spec, device, backend)
    moved = {name: x if x is None else x.clone().to(device) for name, x in inputs.items()}
    packed = op.pack(moved["weight"])
    out = op(moved["x"], packed, moved["norm_weight"], moved["residual"])
    assert torch.equal(moved["x"].cpu(), inputs["x"])
    return out


@pytest.mark.parametrize("backend", ["composed", "native"])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("num_rows", [0, 1, 7, 17])
# An even and an odd number of panels; 74 rows do not fill the last one.
@pytest.mark.parametrize("num_out", [96, 74])
def test_on_the_cpu(backend, num_out, num_rows, parts, dtype, random):
    spec = _spec(parts, dtype, num_out=num_out)
    if backend == "native" and spec.is_gated and num_out == 74:
        with pytest.raises(BackendUnavailable, match="multiple of 32 rows, got 74"):
            plan_fused_linear(spec, "cpu", backend)
        return
    inputs = _inputs(spec, num_rows, random)
    if num_rows == 0:
        assert _run(spec, inputs, "cpu", backend).shape == (0, spec.num_outputs)
        return
    expected = _run(
        _spec(parts, torch.float32, num_out=num_out), _widened(inputs), "cpu", "reference"
    )
    _assert_near(_run(spec, inputs, "cpu", backend), expected, dtype)


@pytest.mark.parametrize("backend", ["native"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("num_rows", [1, 2, 9])
def test_quantized_weights(backend, quantization, num_rows, random):
    spec = _spec(PARTS["everything"], torch.bfloat16)
    inputs = _inputs(spec, num_rows, random)
    stored = dequantize_weight(*quantize_weight(inputs["weight"], quantization))
    widened = _widened(inputs) | {"weight": stored}
    expected = _run(_spec(PARTS["everything"], torch.float32), widened, "cpu", "reference")
    linear = replace(spec.linear, quantization=quantization)
    got = _run(replace(spec, linear=linear), inputs, "cpu", backend)
    _assert_near(got, expected, torch.bfloat16)


_ERRORS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def _assert_near(got, expected, dtype):
    assert got.dtype is dtype
    error = (got.cpu().float() - expected).abs()
    assert error.square().mean().sqrt() <= _ERRORS[dtype] * expected.square().mean().sqrt()
    assert error.max() <= 4 * _ERRORS[dtype] * expected.abs().max()


def _widened(inputs):
    return {name: x if x is None else x.float() for name, x in inputs.items()}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
# All tiles divide 128; none divides 96.
@pytest.mark.parametrize(
    ("num_in", "num_rows"), [(96, 0), (96, 1), (128, 1), (96, 2), (128, 8), (96, 9), (96, 17)]
)
def test_triton(num_in, num_rows, parts, dtype, random, triton_device, monkeypatch):
    if dtype is torch.bfloat16 and triton_device == "cpu":
        pytest.skip("the interpreter's bf16 products are wrong; a device runs this in bf16")
    spec = _spec(parts, dtype, num_in, num_out=96 if num_in == 96 else 64)
    one_row = OneRowSizes(block_n=16, block_k=64, depth=2, num_warps=1)
    few_rows = FewRowsSizes(weight_rows=64, block_k=64, num_stages=3, num_warps=4)
    if num_in != 96:
        few_rows = FewRowsSizes(
            weight_rows=16, block_k=32, num_stages=3, num_warps=2, is_persistent=True
        )
    monkeypatch.setattr(_tuning, "one_row_sizes", lambda *_: one_row)
    if dtype is not torch.float32:
        _use_few_rows(monkeypatch, few_rows)
    inputs = _inputs(spec, num_rows, random)
    if num_rows == 0:
        assert _run(spec, inputs, triton_device, "triton").shape == (0, spec.num_outputs)
        return
    expected = _run(
        _spec(parts, torch.float32, num_in, spec.linear.out_features),
        _widened(inputs),
        "cpu",
        "reference",
    )
    _assert_near(_run(spec, inputs, triton_device, "triton"), expected, dtype)


def _use_few_rows(monkeypatch, sizes):
    """Uses these sizes for any product of 2 to 16 rows."""
    monkeypatch.setattr(
        _tuning, "few_rows_sizes", lambda _, row_tile, __: sizes if row_tile <= 16 else None
    )


@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_parts_of_a_ring_are_summed(num_parts, random, triton_device, monkeypatch):
    spec = _spec(PARTS["residual"], torch.float16, 256, 32)
    sizes = FewRowsSizes(weight_rows=16, block_k=128, num_stages=3, num_warps=num_parts)
    _use_few_rows(monkeypatch, sizes)
    inputs = _inputs(spec, 3, random)
    wide = _spec(PARTS["residual"], torch.float32, 256, 32)
    expected = _run(wide, _widened(inputs), "cpu", "reference")
    _assert_near(_run(spec, inputs, triton_device, "triton"), expected, torch.float16)


def test_few_rows_are_one_kernel_where_it_is_faster(monkeypatch):
    counted = []
    parts_in_turn = _triton.Composed.__call__

    def count(self, x, *rest):
        counted.append(len(x))
        return parts_in_turn(self, x, *rest)

    monkeypatch.setattr(_triton.Composed, "__call__", count)
    for parts, dtype, expected in [
        (PARTS["norm-gate"], torch.float16, [17]),
        (PARTS["residual"], torch.float16, [17]),
        (PARTS["plain"], torch.float16, [2, 16, 17]),
        (PARTS["norm"], torch.float32, [2, 16, 17]),
    ]:
        op = _triton.plan(_spec(parts, dtype), "cpu")
        monkeypatch.setattr(_triton_one_row, "one_row_kernel", _NoKernel())
        monkeypatch.setattr(_triton_few_rows, "few_rows_kernel", _NoKernel())
        counted.clear()
        for num_rows in (1, 2, 16, 17):
            x = torch.zeros(num_rows, 96, dtype=dtype)
            residual = (
                torch.zeros(num_rows, 96, dtype=dtype) if parts.get("adds_residual") else None
            )
            weight = (torch.zeros(96, 96, dtype=dtype),)
            op(x, weight, torch.ones(96, dtype=dtype) if "norm_eps" in parts else None, residual)
        assert counted == expected, (parts, dtype)


def test_long_prompts_are_one_kernel_again(monkeypatch):
    op = _triton.plan(_spec(PARTS["norm-gate"], torch.float16), "cpu")
    prompts, composed = _Prompts(), []
    monkeypatch.setattr(op, "_from_rows", (40, prompts))
    monkeypatch.setattr(_triton_few_rows, "few_rows_kernel", _NoKernel())
    monkeypatch.setattr(_triton.Composed, "__call__", lambda self, x, *rest: composed.append(x))
    for num_rows in (16, 17, 39, 40, 99):
        x = torch.zeros(num_rows, 96, dtype=torch.float16)
        out = op(x, (torch.zeros(96, 96, dtype=torch.float16),), torch.ones(96, dtype=x.dtype))
        assert out is None or out.shape == (num_rows, 48)
    assert [len(x) for x in composed] == [17, 39]
    assert prompts.took == [40, 99]


class _Prompts:
    def __init__(self):
        self.took = []

    def __call__(self, x, weight, residual, out):
        self.took.append(len(x))
        assert len(out) == len(x)


class _NoKernel:
    def __getitem__(self, grid):
        return lambda *args, **options: None


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 8, 16, 64])
@pytest.mark.parametrize(("num_in", "num_out"), [(2560, 6144), (4096, 4096), (9728, 2560)])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_on_a_device_in_real_shapes(parts, num_in, num_out, num_rows, random):
    if num_rows == 16 and (parts is PARTS["everything"] or parts is PARTS["plain"]):
        pytest.skip("the kernels of the others")
    spec = _spec(parts, torch.bfloat16, num_in, num_out)
    inputs = _inputs(spec, num_rows, random)
    expected = _run(
        _spec(parts, torch.float32, num_in, num_out), _widened(inputs), "cpu", "composed"
    )
    _assert_near(_run(spec, inputs, "cuda", "auto"), expected, torch.bfloat16)


def test_gate_and_up_are_pairs():
    with pytest.raises(ValueError, match="out_features, got 81"):
        _spec({"is_gated": True}, torch.float32, num_out=81)


def test_triton_refuses_quantized_weights():
    linear = LinearSpec(in_features=64, out_features=64, dtype=torch.bfloat16, quantization="int8")
    with pytest.raises(BackendUnavailable, match="int8"):
        plan_fused_linear(FusedLinearSpec(linear=linear), "cuda", "triton")
