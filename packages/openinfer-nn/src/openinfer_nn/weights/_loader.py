"""The loader: several threads read weights from the files straight into the parameters.

Tensors are cut into pieces of at most 8 MiB. A thread takes a piece and reads it with `preadv`,
which releases the GIL. On the CPU a piece of the right dtype is read in place. Other pieces go
through the thread's staging buffers (see `_staging`).

The thread that reads the last piece of a linear layer's weight packs that weight. The whole
unquantized model is therefore never in memory at once.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock

import torch
from torch import nn

from openinfer_nn.errors import CheckpointError
from openinfer_nn.modules._linear import PackedModule
from openinfer_nn.weights._safetensors import TensorEntry, read_checkpoint
from openinfer_nn.weights._staging import PIECE_BYTES, HostStaging, PinnedStaging, Source
from openinfer_nn.weights._weight_map import WeightMap

_MAX_THREADS = 16
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load_weights(
    folder: Path,
    module: nn.Module,
    weight_map: WeightMap,
    *,
    num_threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Fills every parameter of a module from a checkpoint folder, and packs its linear layers.

    Args:
        folder: The checkpoint: model.safetensors, or shards and their index.
        module: The module to fill.
        weight_map: From checkpoint names to the module's parameters.
        num_threads: Reader threads; by default one per core, at most 16.
        on_progress: Called by any reader thread with (bytes read, bytes in all) after each piece.

    Returns:
        Bytes read.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another model.
    """
    weight_map.check_covers(module.named_parameters())
    entries = read_checkpoint(folder)
    pairs = weight_map.match(folder, entries)
    copies = weight_map.repeated(entries)
    with ExitStack() as files:
        pieces = list(_cut(pairs, files, _PackingIndex(module)))
        total = sum(piece.source.num_bytes for piece in pieces)
        queue: SimpleQueue[_Piece] = SimpleQueue()
        for piece in pieces:
            queue.put(piece)
        progress = _Progress(total, on_progress)
        num_threads = min(
            num_threads or min(_MAX_THREADS, os.cpu_count() or 1), max(1, len(pieces))
        )
        with ThreadPoolExecutor(num_threads, thread_name_prefix="load-weights") as pool:
            readers = [pool.submit(_read_all, queue, progress) for _ in range(num_threads)]
            # Compared last: by then the pages of the originals are in the page cache.
            readers += [
                pool.submit(_compare, *copy, begin)
                for copy in copies
                for begin in range(0, copy[0].num_bytes, PIECE_BYTES)
            ]
        for reader in readers:
            reader.result()
    if any(parameter.is_cuda for parameter in module.parameters()):
        # Frees the readers' pinned slots, which torch's host allocator would keep for good.
        torch._C._host_emptyCache()
    with torch.inference_mode():
        pack_weights(module)
    return total


def pack_weights(module: nn.Module) -> None:
    """Packs the linear layers of a filled module that are not packed yet."""
    for part in module.modules():
        if isinstance(part, PackedModule) and not part.is_packed:
            part.pack()


def weight_bytes(module: nn.Module) -> int:
    """Returns the bytes that a module's weights take once packed; they may be unpacked now."""
    packed = [part for part in module.modules() if isinstance(part, PackedModule)]
    theirs = {id(parameter) for part in packed for parameter in part.parameters()}
    others = sum(p.nbytes for p in module.parameters() if id(p) not in theirs)
    return others + sum(part.weight_bytes for part in packed)


@dataclass(frozen=True, slots=True)
class _Piece:
    source: Source
    destination: torch.Tensor  # flat
    packing: "_Packing | None"  # packs the weight when its last piece is read


class _Packing:
    """Packs a linear layer on the host when the last piece of its weight has been read."""

    def __init__(self, module: PackedModule) -> None:
        self._module = module
        self._num_missing = 0
        self._lock = Lock()

    def expect_piece(self) -> None:
        """Counts one more piece. All are counted before any is read."""
        self._num_missing += 1

    def finish_piece(self) -> None:
        """Counts a piece as read; packs the weight if it was the last."""
        with self._lock:
            self._num_missing -= 1
            is_filled = self._num_missing == 0
        if is_filled:
            self._module.pack()


class _PackingIndex:
    """Finds the linear layer whose weight contains a destination tensor, by address."""

    def __init__(self, module: nn.Module) -> None:
        found = [
            (part.weight.data_ptr(), part.weight.nbytes, _Packing(part))
            for part in module.modules()
            # On a GPU the copy of a piece may still be in flight when its read is done.
            if isinstance(part, PackedModule) and part.weight.device.type == "cpu"
        ]
        found.sort(key=lambda entry: entry[0])
        self._begins = [begin for begin, _, _ in found]
        self._found = found

    def find(self, destination: torch.Tensor) -> _Packing | None:
        at = bisect_right(self._begins, destination.data_ptr()) - 1
        if at < 0:
            return None
        begin, num_bytes, packing = self._found[at]
        return packing if destination.data_ptr() < begin + num_bytes else None


class _Progress:
    """Counts bytes for the caller, and tells the readers when one of them has failed."""

    def __init__(self, total: int, callback: Callable[[int, int], None] | None) -> None:
        self.failed = Event()
        self._total = total
        self._callback = callback
        self._done = 0
        self._lock = Lock()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._done += num_bytes
            if self._callback is not None:
                self._callback(self._done, self._total)


def _cut(
    pairs: list[tuple[TensorEntry, torch.Tensor]], files: ExitStack, index: _PackingIndex
) -> Iterator[_Piece]:
    """Cuts tensors into pieces, in the order of the files, so that a disk is read sequentially."""
    fds: dict[Path, int] = {}
    for entry, destination in sorted(pairs, key=lambda pair: (pair[0].path, pair[0].offset)):
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise CheckpointError(
                entry.path, entry.name, f"dtype {entry.dtype} is not one of {', '.join(_DTYPES)}"
            )
        if entry.path not in fds:
            fd = os.open(entry.path, os.O_RDONLY)
            files.callback(os.close, fd)
            fds[entry.path] = fd
        offset, packing = entry.offset, index.find(destination)
        for flat in torch.split(destination.detach().view(-1), PIECE_BYTES // dtype.itemsize):
            if packing is not None:
                packing.expect_piece()
            num_bytes = flat.numel() * dtype.itemsize
            yield _Piece(Source(entry, fds[entry.path], offset, dtype, num_bytes), flat, packing)
            offset += num_bytes


def _read_all(queue: SimpleQueue[_Piece], progress: _Progress) -> None:
    """Reads pieces until the queue is empty or another reader has failed; runs in a thread."""
    # Inference mode is per thread, and a model built in it can only be written in it.
    with torch.inference_mode():
        staging: HostStaging | PinnedStaging | None = None
        try:
            while not progress.failed.is_set():
                try:
                    piece = queue.get_nowait()
                except Empty:
                    break
                device = piece.destination.device
                if staging is None:
                    is_cuda = device.type == "cuda"
                    staging = PinnedStaging(device) if is_cuda else HostStaging()
                staging.load(piece.source, piece.destination)
                if piece.packing is not None:
                    piece.packing.finish_piece()
                progress.add(piece.source.num_bytes)
            if staging is not None:
                staging.finish()
        except BaseException:
            progress.failed.set()
            raise


def _compare(copy: TensorEntry, original: TensorEntry, otherwise: str, begin: int) -> None:
    """Compares a piece of a tensor with the same piece of the tensor that it should repeat."""
    pieces = []
    for entry in (copy, original):
        with entry.path.open("rb") as file:
            file.seek(entry.offset + begin)
            pieces.append(file.read(min(PIECE_BYTES, entry.num_bytes - begin)))
    if pieces[0] != pieces[1]:
        raise CheckpointError(copy.path, copy.name, otherwise)
