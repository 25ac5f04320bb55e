"""Products of many rows on Hopper, whose kernels no interpreter runs."""

from types import SimpleNamespace

import pytest
import torch

from openinfer_kernels import FusedLinearSpec, LinearSpec, plan_fused_linear
from openinfer_kernels.gpu._support import why_not_hopper
from openinfer_kernels.ops.fused_linear._gluon_many_rows import ManyRowsLauncher
from openinfer_kernels.ops.fused_linear._gluon_prompts import (
    PromptsLauncher,
    Shares,
    share_out,
    why_not_prompts,
)
from openinfer_kernels.ops.fused_linear._tuning import ROW_TILES, many_rows_cut

NORM = {"norm_eps": 1e-6}
GATE = {"norm_eps": 1e-6, "is_gated": True}
ADD = {"adds_residual": True}


def _spec(parts, num_in, num_out, dtype=torch.bfloat16):
    linear = LinearSpec(in_features=num_in, out_features=num_out, dtype=dtype)
    return FusedLinearSpec(linear=linear, **parts)


def _cut(spec, row_tile):
    cut = many_rows_cut(spec, row_tile, 132)
    return cut and (cut.num_splits, cut.num_stages)


def test_inputs_are_split_until_multiprocessors_are_busy():
    assert _cut(_spec(NORM, 2560, 6144), 32) == (1, 9)
    assert _cut(_spec(ADD, 4096, 2560), 32) == (2, 9)
    assert _cut(_spec(ADD, 9728, 2560), 64) == (3, 7)
    assert _cut(_spec(GATE, 4096, 24_576), 64) == (1, 4)
    assert _cut(_spec(GATE, 2048, 12_288), 64) == (1, 9)


def test_fewer_rows_take_it_where_it_is_faster():
    assert _cut(_spec(ADD, 9728, 2560), 8) == (3, 12)
    assert _cut(_spec(ADD, 4096, 2560), 8) is None
    assert _cut(_spec(ADD, 4096, 2560), 16) == (2, 11)
    assert _cut(_spec(NORM, 2560, 6144), 8) is None
    assert _cut(_spec(NORM, 2560, 6144), 16) == (1, 10)
    assert _cut(_spec(GATE, 2560, 19_456), 16) is None


def test_what_the_library_does_as_fast_is_left_to_it():
    for spec in [
        _spec({}, 2560, 151_936),
        _spec(NORM, 2560, 6144, torch.float32),
        _spec(ADD, 2052, 6144),
        _spec(ADD, 2048, 1024),
    ]:
        assert [_cut(spec, row_tile) for row_tile in ROW_TILES] == [None] * 4


@pytest.mark.parametrize(
    ("capability", "version", "has_gluon"),
    [
        ((8, 0), "3.6.0", False),
        ((10, 0), "3.6.0", False),
        ((9, 0), "3.9.0", False),
        ((9, 0), "3.6.0", True),
    ],
)
def test_it_is_for_hopper_and_one_version_of_triton(capability, version, has_gluon, monkeypatch):
    _use_gpu(monkeypatch, capability)
    monkeypatch.setattr("triton.__version__", version)
    reason = why_not_hopper(torch.device("cuda"))
    assert (reason is None) == has_gluon


def test_tiles_that_do_not_go_round_are_cut_where_that_is_shorter():
    assert share_out(608, 40, 132) == Shares(528, 132)
    assert share_out(304, 40, 132) == Shares(264, 120)
    assert share_out(1216, 40, 132) == Shares(1188, 84)
    # Cutting would take longer: a share has 35 of a tile's 40 steps, and sums must be added.
    assert share_out(380, 40, 132) == Shares(380, 1)
    # Every program has the same number of tiles, or there is only one wave.
    assert share_out(264, 40, 132) == Shares(264, 1)
    assert share_out(76, 40, 132) == Shares(76, 1)


@pytest.mark.parametrize("num_steps", [14, 40, 152])
def test_a_share_of_what_is_cut_is_no_more_than_a_tile(num_steps):
    """A program therefore stores partial sums of at most one tile, for which there is room."""
    for num_tiles in range(1, 60):
        num_whole, num_sharers = share_out(num_tiles, num_steps, 7)
        if num_whole < num_tiles:
            assert num_whole % 7 == 0
            assert num_tiles - num_whole <= num_sharers <= 7


def test_gates_of_prompts_are_measured_ones_on_hopper(monkeypatch):
    device = torch.device("cuda")
    _use_gpu(monkeypatch, (9, 0))
    assert why_not_prompts(_spec(GATE, 2560, 19_456), device) is None
    for spec, reason in [
        (_spec(ADD, 9728, 2560), "as fast"),
        (_spec(GATE, 2048, 12_288), "as fast"),
        (_spec(GATE, 2560, 19_456, torch.float16), "measured in bfloat16"),
        (_spec(GATE, 2568, 19_456), "multiple of 64"),
        (_spec(GATE, 2560, 19_584), "multiple of 64, outputs of 128"),
    ]:
        assert reason in why_not_prompts(spec, device)
    assert PromptsLauncher(_spec(GATE, 2560, 19_456), torch.device("cpu")).min_rows == 320
    assert PromptsLauncher(_spec(GATE, 4096, 24_576), torch.device("cpu")).min_rows == 512
    _use_gpu(monkeypatch, (8, 0))
    assert "capability 9" in why_not_prompts(_spec(GATE, 2560, 19_456), device)


def _use_gpu(monkeypatch, capability):
    major, minor = capability
    properties = SimpleNamespace(major=major, minor=minor, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


@pytest.fixture
def _hopper():
    reason = why_not_hopper(torch.device("cuda"))
    if reason is not None:
        pytest.skip(reason)


class _Product:
    """An op and its inputs on the device: rows, weight, norm weight, residual."""

    def __init__(self, spec, num_rows, seed=0):
        generator = torch.Generator("cuda").manual_seed(seed)
        num_in, num_out = spec.linear.in_features, spec.linear.out_features

        def draw(*shape):
            return torch.randn(*shape, generator=generator, device="cuda")

        self.spec, self.dtype = spec, spec.linear.dtype
        self.op = plan_fused_linear(spec, "cuda")
        self.x = draw(num_rows, num_in).to(self.dtype)
        self.weight = (draw(num_out, num_in) * num_in**-0.5).to(self.dtype)
        self.norm = draw(num_in).to(self.dtype) if spec.norm_eps else None
        shape = (num_rows, spec.num_outputs)
        self.residual = draw(*shape).to(self.dtype) if spec.adds_residual else None

    def __call__(self, x=None, residual=None):
        x = self.x if x is None else x
        if residual is None and self.residual is not None:
            residual = self.residual[: len(x)].clone()
        return self.op(x, (self.weight,), self.norm, residual)

    def expected(self):
        linear = LinearSpec(
            in_features=self.spec.linear.in_features,
            out_features=self.spec.linear.out_features,
            dtype=torch.float32,
        )
        parts = {
            "norm_eps": self.spec.norm_eps,
            "is_gated": self.spec.is_gated,
            "adds_residual": self.spec.adds_residual,
        }
        wide = plan_fused_linear(FusedLinearSpec(linear=linear, **parts), "cuda", "composed")
        inputs = (self.x, self.weight, self.norm, self.residual)
        x, weight, norm, residual = (i if i is None else i.float() for i in inputs)
        return wide(x, (weight,), norm, residual)


SHAPES = {
    "one-share": (NORM, 2560, 6144),
    "shares": (ADD, 9728, 2560),
    "gate": (GATE, 2560, 19_456),
    # Shapes that neither tiles nor boxes divide.
    "ragged": (ADD, 4104, 4104),
    "ragged-gate": (GATE, 1032, 8208),
}


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [5, 16, 17, 32, 33, 64])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_the_parts_in_float32(shape, num_rows, dtype, monkeypatch):
    spec = _spec(*shape, dtype)
    tile = next(tile for tile in ROW_TILES if num_rows <= tile)
    if _cut(spec, tile) is None or (dtype is torch.float16 and num_rows in (16, 32, 33)):
        pytest.skip("other kernels, and those of the others")
    _check(spec, num_rows, ManyRowsLauncher, monkeypatch)


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("num_rows", [512, 600, 1025, 2048])
@pytest.mark.parametrize("shape", [SHAPES["gate"], (GATE, 4096, 24_576)])
def test_gates_of_prompts_equal_the_parts_in_float32(shape, num_rows, monkeypatch):
    _check(_spec(*shape), num_rows, PromptsLauncher, monkeypatch)


def _check(spec, num_rows, kind, monkeypatch):
    launched = []
    monkeypatch.setattr(kind, "__call__", _counted(kind.__call__, launched))
    product = _Product(spec, num_rows)
    got, expected = product(), product.expected()
    assert launched == [num_rows]
    error = (got.float() - expected).abs()
    bound = 8e-3 if spec.linear.dtype is torch.bfloat16 else 1e-3
    assert error.square().mean().sqrt() <= bound * expected.square().mean().sqrt()
    assert error.max() <= 4 * bound * expected.abs().max()


def _counted(call, counted):
    def launch(self, x, *rest):
        counted.append(len(x))
        call(self, x, *rest)

    return launch


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("shape", [SHAPES["shares"], SHAPES["gate"]])
def test_rows_are_independent_and_no_memory_after_them_is_read(shape):
    product = _Product(_spec(*shape), 32)
    together = product()
    for _ in range(10):
        assert torch.equal(product(), together)
    padded = product.x.clone()
    padded[20:] = float("nan")
    if product.residual is None:
        assert torch.equal(product(padded[:20]), together[:20])
        return
    residual = product.residual.clone()
    assert torch.equal(product(padded[:20], residual[:20]), together[:20])
    assert torch.equal(residual[20:], product.residual[20:])


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("num_rows", [330, 1024])
def test_prompts_of_one_size_are_equal_bit_by_bit_and_end_with_their_rows(num_rows):
    product = _Product(_spec(*SHAPES["gate"]), num_rows)
    expected = product()
    room = torch.full((num_rows + 200, product.spec.num_outputs), float("nan"), device="cuda")
    room = room.to(product.dtype)
    for _ in range(10):
        out = room[:num_rows].fill_(float("nan"))
        assert product.op(product.x, (product.weight,), product.norm, None, out) is out
        assert torch.equal(out, expected)
    assert room[num_rows:].isnan().all()
    # The rows of a tile are independent.
    product.x[50:] = 0
    assert torch.equal(product()[:50], expected[:50])


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("num_rows", [5, 16, 24, 64, 600])
def test_kernels_that_overlap_do_what_kernels_one_after_the_other_do(num_rows):
    """Kernels read only older data before the previous kernel has ended: no race shows."""
    out = [_Product(_spec(ADD, 4096, 2560), num_rows, seed) for seed in range(4)]
    gates = [_Product(_spec(GATE, 2560, 19_456), num_rows, seed) for seed in range(4)]
    downs = [_Product(_spec(ADD, 9728, 2560), num_rows, seed) for seed in range(4)]
    begin = torch.randn(num_rows, 2560, device="cuda").to(torch.bfloat16)

    def run(wait):
        x = begin.clone()
        for attend, gate, down in zip(out, gates, downs, strict=True):
            x = attend(attend.x, x)
            wait()
            hidden = gate(x)
            wait()
            x = down(hidden, x)
            wait()
        return x

    expected = run(torch.cuda.synchronize)
    assert torch.equal(run(lambda: None), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run(lambda: None)
    for _ in range(20):
        # New values, so that results of the previous replay cannot pass for this one's.
        for values in (begin, *(attend.x for attend in out)):
            values.normal_()
        expected = run(torch.cuda.synchronize)
        graph.replay()
        assert torch.equal(got, expected)
