import os
import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import ctypes, sys, tempfile, threading
from openinfer.serve._arenas import keep_one_arena

if "one" in sys.argv:
    keep_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier(4)

def allocate():
    together.wait()
    for _ in range(1000):
        libc.malloc(ctypes.c_size_t(5000))
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(file.read().count(b"<heap nr="))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc")
@pytest.mark.parametrize(
    ("argument", "maximum", "is_one"), [("one", "", True), ("any", "", False), ("one", "8", False)]
)
def test_threads_share_a_heap_unless_the_environment_says_otherwise(argument, maximum, is_one):
    environment = {key: value for key, value in os.environ.items() if key != "MALLOC_ARENA_MAX"}
    environment |= {"MALLOC_ARENA_MAX": maximum} if maximum else {}
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT, argument],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (int(found.stdout) == 1) == is_one
