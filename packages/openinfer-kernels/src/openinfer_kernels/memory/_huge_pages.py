"""Host memory in huge pages (2 MiB), for weights and cache, which every step reads as a whole.

With pages of 4 KiB, a stream walks the page table every 64 cache lines (two nested tables in a
virtual machine), and hardware prefetching stops there. On two busy Zen 4 cores, one thread read a
weight at 11 to 17 GB/s from small pages, and at 25 to 28 GB/s from huge pages. Linux gives huge
pages if `madvise` asks for them before the memory is first written and
`transparent_hugepage/enabled` is "madvise" (the default of most distributions) or "always".
Elsewhere the functions return the same memory in small pages.
"""

import ctypes
import functools
import math
import mmap
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

import torch

_PAGE = 1 << 21
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_ALIGNMENT = 64
# Size of the mappings that small weights share; most weights are smaller than two pages.
_SHARED_BYTES = 1 << 25


def empty_weight(
    shape: tuple[int, ...], *, device: torch.device | str, dtype: torch.dtype
) -> torch.Tensor:
    """Returns an uninitialised tensor; on a host, in huge pages if it fills one or more."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if _ADVICE is None or torch.device(device).type != "cpu" or num_bytes < _PAGE:
        return torch.empty(shape, device=device, dtype=dtype)
    # The skipped bytes are never written, so they take no memory. The last page is small unless the
    # tensor fills it.
    buffer = torch.empty(num_bytes + _PAGE, dtype=torch.uint8)
    skipped = -buffer.data_ptr() % _PAGE
    # If the system refuses, the memory stays in small pages.
    _madvise()(buffer.data_ptr() + skipped, num_bytes // _PAGE * _PAGE, _ADVICE)
    return buffer[skipped : skipped + num_bytes].view(dtype).view(shape)


def zeros_in_huge_pages(num_bytes: int) -> torch.Tensor:
    """Returns zeros, [num_bytes], uint8. Pages take memory once they are written."""
    return torch.frombuffer(_mapping(num_bytes), dtype=torch.uint8)


def empty_in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns a host tensor with undefined contents.

    Small tensors share a mapping, which is freed with the last of them.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    mapping, offset = _shared_mappings.take(num_bytes)
    count = math.prod(shape)
    return torch.frombuffer(mapping, dtype=dtype, count=count, offset=offset).view(shape)


class _SharedMappings:
    """Mappings that small tensors share, filled one after the other. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._mapping: mmap.mmap | None = None
        self._used = 0

    def take(self, num_bytes: int) -> tuple[mmap.mmap, int]:
        """Returns a mapping and the offset of the bytes in it."""
        if num_bytes > _SHARED_BYTES // 2:
            return _mapping(num_bytes), 0
        with self._lock:
            if self._mapping is None or self._used + num_bytes > _SHARED_BYTES:
                self._mapping, self._used = _mapping(_SHARED_BYTES), 0
            offset = self._used
            self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
            return self._mapping, offset


_shared_mappings = _SharedMappings()


def _mapping(num_bytes: int) -> mmap.mmap:
    if _ADVICE is None:
        return mmap.mmap(-1, num_bytes)
    # A private mapping: huge pages of shared memory have a setting of their own, usually off.
    mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a Linux kernel without huge pages
        mapping.madvise(_ADVICE)
    return mapping


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise
