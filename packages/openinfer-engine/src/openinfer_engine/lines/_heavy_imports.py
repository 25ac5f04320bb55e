"""Importing large libraries in a process that is starting."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Pauses the garbage collector while a model line imports the libraries it needs.

    Modules create hundreds of thousands of objects that stay alive, and each collection would visit
    them again. Without the collector, `import torch` took 1.75 s of CPU instead of 1.88 s, and
    torch with triton and dynamo 4.03 s instead of 4.81 s (medians of 5 and 3 runs on a shared AMD
    EPYC host, Python 3.11). If the process keeps long-lived objects out of collections
    (`gc.freeze`), as the engine process does, the imported ones are kept out, too.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count():
            gc.freeze()
        if is_enabled:
            gc.enable()
