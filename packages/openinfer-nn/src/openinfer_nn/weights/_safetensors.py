"""Safetensors headers: the tensors of a checkpoint and their places in its files, checked.

A file begins with the header's length in 8 bytes, little-endian. The header is a JSON object of
name to {dtype, shape, data_offsets}. The data follows; offsets count from the header's end
(https://github.com/huggingface/safetensors#format). Nothing is unpickled.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openinfer_nn.errors import CheckpointError

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor in a file.

    Attributes:
        name: Name in the checkpoint.
        path: The file that holds it.
        dtype: Name of the dtype in the format, for example "BF16".
        shape: Dimensions.
        offset: Bytes from the beginning of the file.
        num_bytes: Size.
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_checkpoint(folder: Path) -> dict[str, TensorEntry]:
    """Returns every tensor of a checkpoint folder, of one file or of the shards in its index.

    Raises:
        CheckpointError: There is no checkpoint, a header is malformed, a file is truncated, or
            index and shards disagree.
    """
    single, index = folder / _SINGLE_FILE, folder / _INDEX_FILE
    if single.is_file():
        return read_header(single)
    if index.is_file():
        return _read_shards(folder, index)
    raise CheckpointError(
        folder, None, f"it has neither {_SINGLE_FILE} nor {_INDEX_FILE}; only safetensors are read"
    )


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Returns the tensors of one file after checking that they tile its data exactly.

    Raises:
        CheckpointError: The header is malformed or the file is truncated.
    """
    try:
        with path.open("rb") as file:
            file_bytes = file.seek(0, 2)
            file.seek(0)
            prefix = file.read(_LENGTH_BYTES)
            if len(prefix) < _LENGTH_BYTES:
                raise CheckpointError(path, None, f"truncated: it has {file_bytes} bytes")
            (header_bytes,) = struct.unpack("<Q", prefix)
            if header_bytes > min(_MAX_HEADER_BYTES, file_bytes - _LENGTH_BYTES):
                raise CheckpointError(
                    path,
                    None,
                    f"its header claims {header_bytes} bytes of a file of {file_bytes}: "
                    "it is truncated, or not a safetensors file",
                )
            header = file.read(header_bytes)
    except OSError as error:
        raise CheckpointError(path, None, error.strerror or str(error)) from error
    entries = _parse_header(path, header, _LENGTH_BYTES + header_bytes)
    _check_tiling(path, entries, _LENGTH_BYTES + header_bytes, file_bytes)
    return {entry.name: entry for entry in entries}


def _parse_header(path: Path, header: bytes, data_offset: int) -> list[TensorEntry]:
    try:
        table = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, None, f"its header is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise CheckpointError(path, None, "its header is not a JSON object")
    table.pop("__metadata__", None)
    return [_parse_entry(path, name, fields, data_offset) for name, fields in table.items()]


def _parse_entry(path: Path, name: str, fields: Any, data_offset: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
        # isinstance would accept True as a dimension.
        is_sound = isinstance(shape, list) and all(
            type(n) is int and n >= 0 for n in (*shape, begin, end)
        )
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(path, name, "its header entry is malformed") from error
    if not is_sound or not isinstance(dtype, str) or dtype not in _ITEM_BITS:
        raise CheckpointError(path, name, f"its header entry is malformed: {fields}")
    num_bytes = math.prod(shape) * _ITEM_BITS[dtype] // 8
    if end - begin != num_bytes:
        raise CheckpointError(
            path, name, f"{dtype} of shape {shape} takes {num_bytes} bytes, it has {end - begin}"
        )
    return TensorEntry(
        name=name,
        path=path,
        dtype=dtype,
        shape=tuple(shape),
        offset=data_offset + begin,
        num_bytes=num_bytes,
    )


def _check_tiling(
    path: Path, entries: list[TensorEntry], data_offset: int, file_bytes: int
) -> None:
    expected = data_offset
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.num_bytes)):
        if entry.offset < expected:
            raise CheckpointError(path, entry.name, "it overlaps another tensor")
        if entry.offset > expected:
            raise CheckpointError(path, entry.name, "there is a hole before it")
        expected += entry.num_bytes
    if expected > file_bytes:
        raise CheckpointError(
            path, None, f"truncated: its tensors end at byte {expected}, the file at {file_bytes}"
        )
    if expected < file_bytes:
        raise CheckpointError(path, None, f"{file_bytes - expected} bytes belong to no tensor")


def _read_shards(folder: Path, index: Path) -> dict[str, TensorEntry]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        shards = sorted(set(weight_map.values()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(index, None, f"the index is malformed: {error!r}") from error
    entries: dict[str, TensorEntry] = {}
    for shard in shards:
        if not isinstance(shard, str) or "\0" in shard or Path(shard).name != shard:
            raise CheckpointError(index, None, f"it names a file outside the folder: {shard!r}")
        for name, entry in read_header(folder / shard).items():
            if weight_map.get(name) != shard:
                elsewhere = weight_map.get(name, "nowhere")
                raise CheckpointError(
                    entry.path, name, f"the index places this tensor in {elsewhere}"
                )
            entries[name] = entry
    missing = sorted(weight_map.keys() - entries.keys())
    if missing:
        path = folder / weight_map[missing[0]]
        raise CheckpointError(
            path, missing[0], "the index places it in this file, which does not have it"
        )
    return entries
