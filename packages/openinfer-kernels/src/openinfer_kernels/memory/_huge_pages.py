"""Host memory in huge pages (2 MiB), for what every step reads from end to end: weights and cache.

With pages of 4 KiB a stream pays for a page table walk every 64 cache lines, a nested one in a
virtual machine, and the hardware stops fetching ahead there: on two busy Zen 4 cores one thread
read a weight at 11 to 17 GB/s so, and at 25 to 28 in huge pages. Linux gives them to those who ask
before the memory is written for the first time (`transparent_hugepage/enabled` is "madvise" on most
distributions); where it does not, or the system is another one, the same memory is in small pages.
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
# Weights share mappings of this size: most are smaller than two pages.
_CHUNK = 1 << 25


def empty_weight(
    shape: tuple[int, ...], *, device: torch.device | str, dtype: torch.dtype
) -> torch.Tensor:
    """A tensor as `torch.empty` gives it; on a host it begins with a huge page, if it fills one."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if _ADVICE is None or torch.device(device).type != "cpu" or num_bytes < _PAGE:
        return torch.empty(shape, device=device, dtype=dtype)
    # What is skipped is never written, so it takes no memory; nor is a last page that is not filled
    # a huge one.
    room = torch.empty(num_bytes + _PAGE, dtype=torch.uint8)
    skipped = -room.data_ptr() % _PAGE
    # Refused is as good as not asked for.
    _madvise()(room.data_ptr() + skipped, num_bytes // _PAGE * _PAGE, _ADVICE)
    return room[skipped : skipped + num_bytes].view(dtype).view(shape)


def zeros_in_huge_pages(num_bytes: int) -> torch.Tensor:
    """[num_bytes], uint8, all zero; it takes memory only where it has been written."""
    return torch.frombuffer(_mapping(num_bytes), dtype=torch.uint8)


def empty_in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A host tensor, its contents undefined; several share a mapping, which lives while they do."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    mapping, offset = _chunks.take(num_bytes)
    count = math.prod(shape)
    return torch.frombuffer(mapping, dtype=dtype, count=count, offset=offset).view(shape)


class _Chunks:
    """Hands out one mapping from its beginning to its end, then begins another. For any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._mapping: mmap.mmap | None = None
        self._used = 0

    def take(self, num_bytes: int) -> tuple[mmap.mmap, int]:
        """A mapping and where in it the bytes begin."""
        if num_bytes > _CHUNK // 2:
            return _mapping(num_bytes), 0
        with self._lock:
            if self._mapping is None or self._used + num_bytes > _CHUNK:
                self._mapping, self._used = _mapping(_CHUNK), 0
            offset = self._used
            self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
            return self._mapping, offset


_chunks = _Chunks()


def _mapping(num_bytes: int) -> mmap.mmap:
    if _ADVICE is None:
        return mmap.mmap(-1, num_bytes)
    # Private: shared memory has a setting of its own, which is mostly off.
    mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        mapping.madvise(_ADVICE)
    return mapping


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise
