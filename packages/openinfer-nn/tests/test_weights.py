import pytest
import torch
from torch import nn

from openinfer_nn import CheckpointError, MergedLinear, WeightMap, load_weights


class Net(nn.Module):
    """A fused product and a vector."""

    def __init__(self, dtype=torch.float32, device="cpu"):
        super().__init__()
        # A backend that keeps the stored order.
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
    monkeypatch.setattr("openinfer_nn._loader._PIECE_BYTES", 12)
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
    monkeypatch.setattr("openinfer_nn._loader._PIECE_BYTES", 12)
    write_file(tmp_path / "model.safetensors", tensors)
    for dtype in (torch.float32, torch.bfloat16):
        net = Net(dtype, device="cuda")
        load_weights(tmp_path, net, net.weight_map(), num_threads=3)
        rows = torch.cat((tensors["gate"], tensors["up"]))
        assert torch.equal(net.merged.weight.cpu(), rows.to(dtype))
