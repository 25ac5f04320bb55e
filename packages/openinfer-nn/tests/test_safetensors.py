import json

import pytest
import torch

from openinfer_nn import CheckpointError, read_checkpoint

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "BF16", "shape": [2, 1], "data_offsets": [8, 12]}


def test_a_file_written_by_the_library_is_read(tmp_path, write_file):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(5, dtype=torch.bfloat16)}
    path = write_file(tmp_path / "model.safetensors", tensors)
    entries = read_checkpoint(tmp_path)
    assert {name: (e.dtype, e.shape) for name, e in entries.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("BF16", (5,)),
    }
    data = path.read_bytes()
    a = entries["a"]
    assert data[a.offset : a.offset + a.num_bytes] == tensors["a"].numpy().tobytes()


def test_metadata_and_an_empty_tensor_are_fine(tmp_path, write_raw):
    empty = {"dtype": "F32", "shape": [0, 4], "data_offsets": [8, 8]}
    header = {"__metadata__": {"format": "pt"}, "e": empty, "a": A}
    write_raw(tmp_path / "model.safetensors", header, bytes(8))
    assert read_checkpoint(tmp_path)["e"].num_bytes == 0


@pytest.mark.parametrize(
    ("header", "data", "tensor", "reason"),
    [
        ({"a": A, "b": B}, bytes(11), None, "truncated"),
        ({"a": A}, bytes(9), None, "1 bytes belong to no tensor"),
        ({"a": A, "b": {**B, "data_offsets": [6, 10]}}, bytes(12), "b", "overlaps"),
        ({"a": A, "b": {**B, "data_offsets": [9, 13]}}, bytes(13), "b", "hole"),
        ({"a": {**A, "shape": [3]}}, bytes(8), "a", "takes 12 bytes, it has 8"),
        ({"a": {**A, "shape": [-2]}}, bytes(8), "a", "malformed"),
        ({"a": {**A, "dtype": "F31"}}, bytes(8), "a", "malformed"),
        ({"a": {**A, "data_offsets": [0]}}, bytes(8), "a", "malformed"),
        ({"a": {"dtype": "F32"}}, bytes(8), "a", "malformed"),
        ({"a": 3}, bytes(8), "a", "malformed"),
        ({"a": {**A, "dtype": ["F32"]}}, bytes(8), "a", "malformed"),
        ({"a": {**A, "shape": "", "data_offsets": [0, 4]}}, bytes(4), "a", "malformed"),
        ({"a": {**A, "shape": [True, 2]}}, bytes(8), "a", "malformed"),
        (b"{", b"", None, "not JSON"),
        (b"[" * 200_000, b"", None, "not JSON"),
        (b"[]", b"", None, "not a JSON object"),
    ],
)
def test_an_unsound_header_is_refused(tmp_path, write_raw, header, data, tensor, reason):
    path = write_raw(tmp_path / "model.safetensors", header, data)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_checkpoint(tmp_path)
    assert (caught.value.path, caught.value.tensor) == (path, tensor)


@pytest.mark.parametrize("content", [b"", b"\x01\x00", b"\xff" * 40, b"\x80\x02}q\x00." * 9])
def test_what_is_no_safetensors_file_is_refused(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="truncated"):
        read_checkpoint(tmp_path)


def test_a_folder_without_safetensors_says_what_is_read(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match="only safetensors are read"):
        read_checkpoint(tmp_path)


@pytest.fixture
def shards(tmp_path, write_raw):
    def write(weight_map: object, **files: dict) -> None:
        for name, header in files.items():
            size = sum(e["data_offsets"][1] - e["data_offsets"][0] for e in header.values())
            write_raw(tmp_path / f"{name}.safetensors", header, bytes(size))
        index = {"weight_map": weight_map}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    return write


def test_shards_are_read_together(tmp_path, shards):
    shards({"a": "x.safetensors", "b": "y.safetensors"}, x={"a": A}, y={"b": A})
    entries = read_checkpoint(tmp_path)
    assert {name: entry.path.name for name, entry in entries.items()} == {
        "a": "x.safetensors",
        "b": "y.safetensors",
    }


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        ({"a": "x.safetensors", "b": "x.safetensors"}, "places it in this file"),
        ({"a": "../x.safetensors"}, "outside the folder"),
        ({"a": "gone.safetensors"}, "gone.safetensors: No such file or directory$"),
        ({"b": "x.safetensors"}, "places this tensor in nowhere"),
        ({"a": "x\0.safetensors"}, "outside the folder"),
        ({"a": 3}, "outside the folder"),
        ("x", "malformed"),
        (["x"], "malformed"),
    ],
)
def test_an_index_that_disagrees_is_refused(tmp_path, shards, weight_map, reason):
    shards(weight_map, x={"a": A})
    with pytest.raises(CheckpointError, match=reason):
        read_checkpoint(tmp_path)


def test_an_index_nested_beyond_reason_is_refused(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match="malformed"):
        read_checkpoint(tmp_path)


def test_a_download_cache_of_links_is_read(tmp_path, write_raw):
    (tmp_path / "blobs").mkdir()
    write_raw(tmp_path / "blobs" / "0af3", {"a": A}, bytes(8))
    (tmp_path / "model.safetensors").symlink_to("blobs/0af3")
    assert list(read_checkpoint(tmp_path)) == ["a"]
