import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from openinfer_engine import EngineOptions, LaunchSpec
from openinfer_qwen3 import LINE
from openinfer_runtime import DeviceUnavailable, InsufficientMemory, ModelRejected, fingerprint
from openinfer_runtime.startup._executor_info import executor_info


def spec_of(folder, **options):
    options = {"device": "cpu", "num_threads": 1, "max_num_seqs": 4} | options
    return LaunchSpec(model_path=str(folder), model_line="qwen3", engine=EngineOptions(**options))


@pytest.fixture
def folder(checkpoint, tmp_path):
    """A copy of a checkpoint that a test may damage."""
    return shutil.copytree(checkpoint(), tmp_path / "copy")


@pytest.mark.parametrize(("kind", "has_device"), [("cpu", False), ("cuda", True)])
def test_only_a_gpu_is_a_device_beside_the_host(checkpoint, kind, has_device):
    spec = spec_of(checkpoint())
    plan = LINE.plan(spec)
    memory = SimpleNamespace(max_model_len=8, num_blocks=1, parts=())
    info = executor_info(spec, plan, memory, None, torch.device(kind), "")
    assert info.has_device == has_device


def test_info_says_what_was_decided(checkpoint):
    info = LINE.launch(spec_of(checkpoint(), max_model_len=100, block_size=8)).info
    assert (info.device, info.dtype, info.depth) == ("cpu", "float32", 1)
    assert (info.max_model_len, info.max_num_seqs) == (100, 4)
    (group,) = info.cache_groups
    assert group.tokens_per_block == 8
    assert [what for what, _ in info.memory] == ["weights", "activations", "sampling", "KV cache"]
    assert dict(info.memory)["KV cache"] == info.num_blocks * group.bytes_per_block
    assert "prompt_logprobs" in info.honoured


def test_quantized_weights_take_their_bits_and_have_a_fingerprint_of_their_own(checkpoint):
    folder = checkpoint("gqa4-d128-bf16")
    sizes, fingerprints = {}, set()
    for quantization in (None, "int8", "int4"):
        spec = spec_of(folder, quantization=quantization)
        try:
            info = LINE.launch(spec).info
        except ModelRejected as error:
            pytest.skip(str(error))
        label = f"weights ({quantization})" if quantization else "weights"
        sizes[quantization] = dict(info.memory)[label]
        fingerprints.add(info.model_fingerprint)
    # 16 bits a weight, or 8.5 and 4.5 with their scales; norms stay as they are.
    assert sizes["int8"] / sizes[None] == pytest.approx(8.5 / 16, abs=0.01)
    assert sizes["int4"] / sizes[None] == pytest.approx(4.5 / 16, abs=0.01)
    assert len(fingerprints) == 3


def test_a_shortened_length_is_said(checkpoint, block_bytes, caplog):
    info = LINE.launch(spec_of(checkpoint(), kv_cache_bytes=4 * block_bytes)).info
    assert info.max_model_len == 64
    assert "--kv-cache-memory-bytes" in caplog.text


def test_threads_fit_the_model_unless_told(checkpoint, monkeypatch, caplog):
    asked = []
    monkeypatch.setattr(
        "openinfer_runtime.startup._launch.useful_threads", lambda size: asked.append(size) or 2
    )
    try:
        info = LINE.launch(spec_of(checkpoint(), num_threads=None)).info
        assert torch.get_num_threads() == 2
        assert asked == [dict(info.memory)["weights"]]
        LINE.launch(spec_of(checkpoint(), num_threads=1))
        assert torch.get_num_threads() == 1
        assert "--num-threads" not in caplog.text
        monkeypatch.setattr("openinfer_runtime.startup._launch.physical_cores", lambda: 1)
        LINE.launch(spec_of(checkpoint(), num_threads=2))
        assert "--num-threads 2 on 1 cores" in caplog.text
    finally:
        torch.set_num_threads(1)


def test_a_device_that_is_not_there(checkpoint, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="--device cpu"):
        LINE.launch(spec_of(checkpoint(), device="cuda"))
    assert LINE.launch(spec_of(checkpoint(), device="auto")).info.device == "cpu"


def test_a_damaged_checkpoint(folder):
    shard = folder / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ModelRejected, match="truncated"):
        LINE.launch(spec_of(folder))


def test_weights_that_cannot_fit_are_not_read(checkpoint, monkeypatch):
    monkeypatch.setattr("openinfer_runtime.startup._memory_plan.host_memory_bytes", lambda: 1000)
    monkeypatch.setattr("openinfer_runtime.startup._launch.load_weights", None)
    with pytest.raises(InsufficientMemory, match="take a smaller model"):
        LINE.launch(spec_of(checkpoint()))


def test_a_full_device_is_explained(checkpoint, monkeypatch):
    def load(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr("openinfer_runtime.startup._launch.load_weights", load)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (5, 100))
    with pytest.raises(InsufficientMemory, match="--max-num-batched-tokens") as error:
        LINE.launch(spec_of(checkpoint()))
    assert (error.value.available_bytes, error.value.needed_bytes) == (5, 100)


def test_dummy_weights_need_no_files_and_are_always_the_same(folder):
    for shard in folder.glob("*.safetensors*"):
        shard.unlink()
    first, second = (
        LINE.launch(spec_of(folder, load_format="dummy"))._model.state_dict() for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["layers.0.input_norm.weight"].eq(1).all()
    assert 0.01 < first["layers.1.mlp.down_proj.weight"].std() < 0.03


def test_the_fingerprint_is_of_config_and_headers(folder, checkpoint):
    before = fingerprint(spec_of(folder))
    assert before == fingerprint(spec_of(checkpoint()))
    assert before != fingerprint(spec_of(checkpoint("gqa4-d128-bf16")))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    assert before != fingerprint(spec_of(folder))
