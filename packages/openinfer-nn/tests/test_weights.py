import pytest
import torch
from torch import nn

from openinfer_kernels import BackendUnavailable, dequantize_weight, describe, quantize_weight
from openinfer_nn import (
    CheckpointError,
    Linear,
    MergedLinear,
    WeightMap,
    fill_dummy_weights,
    load_weights,
    weight_bytes,
)


class Net(nn.Module):
    """A merged product and a vector."""

    def __init__(self, dtype=torch.float32, device="cpu"):
        super().__init__()
        # This backend keeps the stored order, so the tests can read the weight after packing.
        self.merged = MergedLinear(4, (3, 5), device=device, dtype=dtype, backend="torch")
        self.scale = nn.Parameter(torch.empty(7, dtype=dtype, device=device), requires_grad=False)

    def weight_map(self) -> WeightMap:
        names = WeightMap()
        gate, up = self.merged.parts()
        names.add("gate", gate)
        names.add("up", up)
        names.add("scale", self.scale)
        names.ignore("*.inv_freq")
        return names


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    shapes = {"gate": (3, 4), "up": (5, 4), "scale": (7,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_fused_rows_are_filled_in_any_dtype(tmp_path, write_file, tensors, stored, wanted):
    tensors = {name: tensor.to(stored) for name, tensor in tensors.items()}
    path = write_file(tmp_path / "model.safetensors", tensors)
    net = Net(wanted)
    seen = []
    total = load_weights(
        tmp_path, net, net.weight_map(), num_threads=2, on_progress=lambda *p: seen.append(p)
    )
    rows = torch.cat((tensors["gate"], tensors["up"]))
    assert torch.equal(net.merged.weight, rows.to(wanted))
    assert torch.equal(net.scale, tensors["scale"].to(wanted))
    assert total == sum(t.nbytes for t in tensors.values()) < path.stat().st_size
    assert seen[-1] == (total, total)


def test_tensors_larger_than_a_piece(tmp_path, write_file, monkeypatch, tensors):
    monkeypatch.setattr("openinfer_nn.weights._loader.PIECE_BYTES", 12)
    write_file(tmp_path / "model.safetensors", tensors)
    for dtype in (torch.float32, torch.bfloat16):
        net = Net(dtype)
        load_weights(tmp_path, net, net.weight_map(), num_threads=4)
        assert torch.equal(net.merged.weight[3:], tensors["up"].to(dtype))


def test_a_model_built_for_inference_only_is_loaded(tmp_path, write_file, tensors):
    write_file(tmp_path / "model.safetensors", tensors)
    with torch.inference_mode():
        net = Net()
    load_weights(tmp_path, net, net.weight_map())
    assert torch.equal(net.scale, tensors["scale"])


def test_short_reads_are_continued(tmp_path, write_file, tensors, monkeypatch):
    write_file(tmp_path / "model.safetensors", tensors)
    preadv = __import__("os").preadv
    monkeypatch.setattr("os.preadv", lambda fd, views, at: preadv(fd, [views[0][:5]], at))
    net = Net()
    load_weights(tmp_path, net, net.weight_map())
    assert torch.equal(net.merged.weight[:3], tensors["gate"])


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path, write_file, tensors, monkeypatch):
    write_file(tmp_path / "model.safetensors", tensors)
    monkeypatch.setattr("os.preadv", lambda *_: 0)
    net = Net()
    with pytest.raises(CheckpointError, match="the file ends at byte"):
        load_weights(tmp_path, net, net.weight_map(), num_threads=3)


@pytest.mark.parametrize(
    ("change", "tensor", "reason"),
    [
        ({"up": None}, "up", "missing"),
        ({"extra": torch.ones(2)}, "extra", "no place for it"),
        ({"up": torch.ones(4, 5)}, "up", r"its shape is \[4, 5\]"),
        ({"up": torch.ones(5, 4, dtype=torch.float64)}, "up", "dtype F64 is not one of"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    tmp_path, write_file, tensors, change, tensor, reason
):
    changed = {name: t for name, t in (tensors | change).items() if t is not None}
    write_file(tmp_path / "model.safetensors", changed)
    net = Net()
    with pytest.raises(CheckpointError, match=reason) as caught:
        load_weights(tmp_path, net, net.weight_map())
    assert caught.value.tensor == tensor


def test_ignorable_tensors_may_be_there(tmp_path, write_file, tensors):
    extra = {"layers.0.inv_freq": torch.ones(2, dtype=torch.float64)}
    write_file(tmp_path / "model.safetensors", tensors | extra)
    net = Net()
    load_weights(tmp_path, net, net.weight_map())


def test_a_repeated_tensor_is_held_to_what_it_repeats(tmp_path, write_file, tensors, monkeypatch):
    monkeypatch.setattr("openinfer_nn.weights._loader.PIECE_BYTES", 16)

    def load(**repeated):
        write_file(tmp_path / "model.safetensors", tensors | repeated)
        net = Net()
        names = net.weight_map()
        names.repeat("again", of="up", otherwise="it is another")
        load_weights(tmp_path, net, names, num_threads=2)

    up = tensors["up"]
    load()
    load(again=up.clone())
    last = up.clone()
    last[-1, -1] += 1e-3
    for other in (last, up.T.contiguous(), up.half()):
        with pytest.raises(CheckpointError, match="tensor 'again': it is another"):
            load(again=other)


def test_a_map_must_fill_every_parameter_exactly():
    net = Net()
    gate, up = net.merged.parts()
    for destinations in (
        {"gate": gate, "up": up},
        {"gate": gate, "scale": net.scale},
        {"up": up, "scale": net.scale},
        {"gate": gate, "up": up, "scale": net.scale, "more": torch.ones(2)},
        {"gate": gate, "up": up, "scale": net.scale, "again": gate},
        {"gate": gate, "up": up[:-1], "scale": net.scale},
    ):
        names = WeightMap()
        for name, destination in destinations.items():
            names.add(name, destination)
        with pytest.raises(AssertionError):
            names.check_covers(net.named_parameters())
    net.weight_map().check_covers(net.named_parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_loading_to_a_gpu_through_pinned_slots(tmp_path, write_file, monkeypatch, tensors):
    monkeypatch.setattr("openinfer_nn.weights._loader.PIECE_BYTES", 12)
    write_file(tmp_path / "model.safetensors", tensors)
    for dtype in (torch.float32, torch.bfloat16):
        net = Net(dtype, device="cuda")
        load_weights(tmp_path, net, net.weight_map(), num_threads=3)
        rows = torch.cat((tensors["gate"], tensors["up"]))
        assert torch.equal(net.merged.weight.cpu(), rows.to(dtype))


class Biased(nn.Module):
    """A product with a bias, and a norm."""

    def __init__(self):
        super().__init__()
        for name, shape in {"weight": (64, 8), "bias": (64,), "norm_weight": (8,)}.items():
            parameter = nn.Parameter(torch.full(shape, torch.nan), requires_grad=False)
            self.register_parameter(name, parameter)


def test_dummy_biases_are_small_and_norms_are_the_identity():
    first, second = Biased(), Biased()
    for module in (first, second):
        fill_dummy_weights(module)
    assert torch.equal(first.norm_weight, torch.ones(8))
    for parameter in (first.weight, first.bias):
        assert 0.01 < parameter.std() < 0.03
        assert abs(parameter.mean()) < 0.01
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.fixture
def many(tmp_path, write_file):
    """Returns a checkpoint of eight products of 2 MiB each and a function that builds its model."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{index}": torch.randn(1024, 1024, generator=generator).bfloat16() for index in range(8)
    }
    write_file(tmp_path / "model.safetensors", tensors)

    def build(quantization=None):
        net = nn.ModuleList(
            Linear(1024, 1024, device="cpu", dtype=torch.bfloat16, quantization=quantization)
            for _ in tensors
        )
        names = WeightMap()
        for index, product in enumerate(net):
            names.add(f"{index}", product.weight)
        return net, names

    return tmp_path, tensors, build


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_products_are_packed_as_they_are_filled(many, quantization, monkeypatch):
    folder, tensors, build = many
    monkeypatch.setattr("openinfer_nn.weights._loader.PIECE_BYTES", 1 << 18)
    try:
        net, names = build(quantization)
    except BackendUnavailable as error:
        pytest.skip(error.reason)
    expected = weight_bytes(net)
    stored = [product.weight.untyped_storage() for product in net]
    each = stored[0].nbytes()
    sizes = []

    def watch(done, total):
        sizes.append(sum(storage.nbytes() for storage in stored))

    load_weights(folder, net, names, num_threads=1, on_progress=watch)
    assert all(product.is_packed for product in net)
    assert weight_bytes(net) == expected
    is_native = {r.op: r.backend for r in describe("cpu")}["linear"] == "native"
    if quantization is None or is_native:  # torch's own 4-bit format also has zero points
        assert sum(p.nbytes for p in net.parameters()) == expected
    x = torch.randn(3, 1024, generator=torch.Generator().manual_seed(1)).bfloat16()
    for product, tensor in zip(net, tensors.values(), strict=True):
        weight = tensor.float()
        if quantization is not None:
            weight = dequantize_weight(*quantize_weight(tensor, quantization))
        torch.testing.assert_close(product(x), (x.float() @ weight.T).bfloat16())
    if quantization is not None:
        # Each stored weight is freed before the next one begins: memory never holds both forms
        # of the whole model.
        num_pieces = len(sizes) // 8
        assert sizes[num_pieces - 1 :: num_pieces] == [(7 - i) * each for i in range(8)]


def test_a_product_that_is_not_packed_says_so():
    product = Linear(8, 8, device="cpu", dtype=torch.float32)
    with pytest.raises(AssertionError, match="not packed"):
        product(torch.zeros(1, 8))
