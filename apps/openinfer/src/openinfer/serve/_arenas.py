"""One heap for a front process.

glibc gives every thread that allocates a heap of its own, and what a thread frees stays in its own.
Tokenizers are read by several threads: with a vocabulary of 151k the peak was 65 to 90 MB higher,
and what stayed 8 to 14 MB. Python runs on one core at a time, so the threads hardly wait.
"""

import ctypes
import os

_M_ARENA_MAX = -8  # malloc.h


def keep_one_arena() -> None:
    """Has all threads share one heap, where the C library is glibc.

    Before there are threads; what the environment says of it (MALLOC_ARENA_MAX) comes first.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, 1)
