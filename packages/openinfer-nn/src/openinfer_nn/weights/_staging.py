"""Reading one piece of a weight file into a tensor, on the host or on a GPU."""

import ctypes
import os
from dataclasses import dataclass

import torch

from openinfer_nn.errors import CheckpointError
from openinfer_nn.weights._safetensors import TensorEntry

PIECE_BYTES = 8 * 1024 * 1024
_SLOTS_PER_THREAD = 2


@dataclass(frozen=True, slots=True)
class Source:
    """A run of bytes in an open file.

    Attributes:
        entry: The tensor that they belong to.
        fd: File descriptor of its file.
        offset: Bytes from the beginning of the file.
        dtype: Dtype of the stored numbers.
        num_bytes: At most PIECE_BYTES.
    """

    entry: TensorEntry
    fd: int
    offset: int
    dtype: torch.dtype
    num_bytes: int


class HostStaging:
    """Loads pieces into host memory; only a piece that changes dtype needs the buffer."""

    def __init__(self) -> None:
        """Creates no buffer; `load` allocates one when a piece needs it."""
        self._buffer: torch.Tensor | None = None

    def load(self, source: Source, destination: torch.Tensor) -> None:
        """Reads a piece and converts it to the destination's dtype."""
        if source.dtype == destination.dtype:
            _read(source, destination.view(torch.uint8))
            return
        if self._buffer is None:
            self._buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8)
        target = self._buffer[: source.num_bytes]
        _read(source, target)
        destination.copy_(target.view(source.dtype))

    def finish(self) -> None:
        """Does nothing: every load is complete when it returns."""


class PinnedStaging:
    """Loads pieces into GPU memory: each is copied from a pinned slot while the next is read."""

    def __init__(self, device: torch.device) -> None:
        """Allocates the pinned slots and a stream."""
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._slots = [
            torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
            for _ in range(_SLOTS_PER_THREAD)
        ]
        self._copied = [
            torch.cuda.Event()  # type: ignore[no-untyped-call]
            for _ in range(_SLOTS_PER_THREAD)
        ]
        self._next = 0

    def load(self, source: Source, destination: torch.Tensor) -> None:
        """Reads a piece into a free slot and starts its copy, which also converts the dtype."""
        slot, copied = self._slots[self._next], self._copied[self._next]
        self._next = (self._next + 1) % _SLOTS_PER_THREAD
        copied.synchronize()
        target = slot[: source.num_bytes]
        _read(source, target)
        with torch.cuda.stream(self._stream):
            destination.copy_(target.view(source.dtype), non_blocking=True)
            copied.record(self._stream)

    def finish(self) -> None:
        """Waits for all copies."""
        self._stream.synchronize()


def _read(source: Source, target: torch.Tensor) -> None:
    """Fills a tensor of bytes on the host. A single read may return less than was asked for."""
    # A view through numpy would keep the storage alive, and a quantized weight could not free it.
    raw = (ctypes.c_char * target.nbytes).from_address(target.data_ptr())
    view = memoryview(raw).cast("B")
    offset, entry = source.offset, source.entry
    while view:
        try:
            count = os.preadv(source.fd, [view], offset)
        except OSError as error:
            raise CheckpointError(entry.path, entry.name, str(error)) from error
        if count == 0:
            raise CheckpointError(entry.path, entry.name, f"the file ends at byte {offset}")
        view, offset = view[count:], offset + count
