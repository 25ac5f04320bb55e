"""Reading weights: several threads, straight from the files into the parameters.

Each tensor is cut into pieces; a thread takes a piece and reads it with `preadv`, which releases
the interpreter. On the CPU a piece of the right dtype is read in place. Otherwise it goes through
the thread's staging, which for a GPU is a ring of pinned slots whose copies overlap the next reads.
A product's weight is packed for its backend as soon as its last piece is there, by the thread that
read it: what a quantized model takes as stored is never in memory as a whole.
"""

import ctypes
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
from openinfer_nn.weights._weight_map import WeightMap

_PIECE_BYTES = 8 * 1024 * 1024
_SLOTS_PER_THREAD = 2
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class _Piece:
    entry: TensorEntry
    fd: int
    offset: int
    dtype: torch.dtype
    destination: torch.Tensor  # flat
    owner: "_Owner | None"  # to be packed once it is filled

    @property
    def num_bytes(self) -> int:
        return self.destination.numel() * self.dtype.itemsize


def load_weights(
    folder: Path,
    module: nn.Module,
    weight_map: WeightMap,
    *,
    num_threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Fills every parameter of a module from a checkpoint folder, and packs its products.

    Args:
        folder: With model.safetensors, or shards and their index.
        module: Whose parameters are filled.
        weight_map: From checkpoint names to those parameters.
        num_threads: Readers; by default one a core, at most 16.
        on_progress: Called with (bytes read, bytes in all) after each piece, by any reader thread.

    Returns:
        Bytes read.

    Raises:
        CheckpointError: The checkpoint is damaged or is not this model's.
    """
    weight_map.check_covers(module.named_parameters())
    entries = read_checkpoint(folder)
    pairs = weight_map.match(folder, entries)
    repeated = weight_map.repeated(entries)
    with ExitStack() as files:
        pieces = list(_cut(pairs, files, _Owners(module)))
        total = sum(piece.num_bytes for piece in pieces)
        queue: SimpleQueue[_Piece] = SimpleQueue()
        for piece in pieces:
            queue.put(piece)
        progress = _Progress(total, on_progress)
        num_threads = min(num_threads or min(16, os.cpu_count() or 1), max(1, len(pieces)))
        with ThreadPoolExecutor(num_threads, thread_name_prefix="load-weights") as pool:
            readers = [pool.submit(_read_all, queue, progress) for _ in range(num_threads)]
            # Behind the readers: by then the pages of the originals are in memory.
            readers += [
                pool.submit(_check_repeated, *repetition, begin)
                for repetition in repeated
                for begin in range(0, repetition[0].num_bytes, _PIECE_BYTES)
            ]
        for reader in readers:
            reader.result()
    if any(parameter.is_cuda for parameter in module.parameters()):
        # The readers' slots: torch would keep that much memory pinned for good.
        torch._C._host_emptyCache()
    with torch.inference_mode():
        pack_weights(module)
    return total


def pack_weights(module: nn.Module) -> None:
    """Packs the products of a filled module that are not packed yet."""
    for part in module.modules():
        if isinstance(part, PackedModule) and not part.is_packed:
            part.pack()


def weight_bytes(module: nn.Module) -> int:
    """Bytes of a module's weights once they are packed, whether they are yet or not."""
    packed = [part for part in module.modules() if isinstance(part, PackedModule)]
    theirs = {id(parameter) for part in packed for parameter in part.parameters()}
    others = sum(p.nbytes for p in module.parameters() if id(p) not in theirs)
    return others + sum(part.weight_bytes for part in packed)


class _Owner:
    """A product on the host, and how many pieces of its weight are still to be read."""

    def __init__(self, module: PackedModule) -> None:
        self._module = module
        self._num_left = 0
        self._lock = Lock()

    def expect(self) -> None:
        """Counts one more piece, before any is read."""
        self._num_left += 1

    def arrive(self) -> None:
        """A piece is there; the last one packs the weight."""
        with self._lock:
            self._num_left -= 1
            is_filled = self._num_left == 0
        if is_filled:
            self._module.pack()


class _Owners:
    """Which product a destination belongs to."""

    def __init__(self, module: nn.Module) -> None:
        found = [
            (part.weight.data_ptr(), part.weight.nbytes, _Owner(part))
            for part in module.modules()
            # A copy to a device may still be under way when its piece is done.
            if isinstance(part, PackedModule) and part.weight.device.type == "cpu"
        ]
        found.sort(key=lambda entry: entry[0])
        self._begins = [begin for begin, _, _ in found]
        self._found = found

    def of(self, destination: torch.Tensor) -> _Owner | None:
        at = bisect_right(self._begins, destination.data_ptr()) - 1
        if at < 0:
            return None
        begin, num_bytes, owner = self._found[at]
        return owner if destination.data_ptr() < begin + num_bytes else None


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
    pairs: list[tuple[TensorEntry, torch.Tensor]], files: ExitStack, owners: _Owners
) -> Iterator[_Piece]:
    fds: dict[Path, int] = {}
    # In file order, so that readers walk a disk forwards.
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
        offset, owner = entry.offset, owners.of(destination)
        for flat in torch.split(destination.detach().view(-1), _PIECE_BYTES // dtype.itemsize):
            if owner is not None:
                owner.expect()
            yield _Piece(entry, fds[entry.path], offset, dtype, flat, owner)
            offset += flat.numel() * dtype.itemsize


def _read_all(queue: SimpleQueue[_Piece], progress: _Progress) -> None:
    # The mode is a thread's own, and a model built in it can be written only in it.
    with torch.inference_mode():
        staging: _HostStaging | _PinnedStaging | None = None
        try:
            while not progress.failed.is_set():
                try:
                    piece = queue.get_nowait()
                except Empty:
                    break
                device = piece.destination.device
                if staging is None:
                    is_cuda = device.type == "cuda"
                    staging = _PinnedStaging(device) if is_cuda else _HostStaging()
                staging.load(piece)
                if piece.owner is not None:
                    piece.owner.arrive()
                progress.add(piece.num_bytes)
            if staging is not None:
                staging.finish()
        except BaseException:
            progress.failed.set()
            raise


def _check_repeated(tensor: TensorEntry, original: TensorEntry, otherwise: str, begin: int) -> None:
    """Compares a piece of a tensor with the same piece of what it should repeat."""
    pieces = []
    for entry in (tensor, original):
        with entry.path.open("rb") as file:
            file.seek(entry.offset + begin)
            pieces.append(file.read(min(_PIECE_BYTES, entry.num_bytes - begin)))
    if pieces[0] != pieces[1]:
        raise CheckpointError(tensor.path, tensor.name, otherwise)


class _HostStaging:
    """Loads into host memory; only pieces that change dtype need the buffer."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def load(self, piece: _Piece) -> None:
        if piece.dtype == piece.destination.dtype:
            _read(piece, piece.destination.view(torch.uint8))
            return
        if self._buffer is None:
            self._buffer = torch.empty(_PIECE_BYTES, dtype=torch.uint8)
        target = self._buffer[: piece.num_bytes]
        _read(piece, target)
        piece.destination.copy_(target.view(piece.dtype))

    def finish(self) -> None:
        """Nothing is in flight."""


class _PinnedStaging:
    """Loads into device memory through pinned slots, each copied while the next is read."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._slots = [
            torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
            for _ in range(_SLOTS_PER_THREAD)
        ]
        self._copied = [
            torch.cuda.Event()  # type: ignore[no-untyped-call]
            for _ in range(_SLOTS_PER_THREAD)
        ]
        self._next = 0

    def load(self, piece: _Piece) -> None:
        slot, copied = self._slots[self._next], self._copied[self._next]
        self._next = (self._next + 1) % _SLOTS_PER_THREAD
        copied.synchronize()
        target = slot[: piece.num_bytes]
        _read(piece, target)
        with torch.cuda.stream(self._stream):
            piece.destination.copy_(target.view(piece.dtype), non_blocking=True)
            copied.record(self._stream)

    def finish(self) -> None:
        self._stream.synchronize()


def _read(piece: _Piece, target: torch.Tensor) -> None:
    """Fills a host tensor of bytes; a read may return less than asked for."""
    # Not through numpy, which would forbid a quantized weight to give the stored one's memory back.
    raw = (ctypes.c_char * target.nbytes).from_address(target.data_ptr())
    view = memoryview(raw).cast("B")
    offset = piece.offset
    while view:
        try:
            count = os.preadv(piece.fd, [view], offset)
        except OSError as error:
            raise CheckpointError(piece.entry.path, piece.entry.name, str(error)) from error
        if count == 0:
            raise CheckpointError(
                piece.entry.path, piece.entry.name, f"the file ends at byte {offset}"
            )
        view, offset = view[count:], offset + count
