"""Importing a library of a thousand modules, in a process that is starting."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Around the imports that a model line's `launch` needs: the garbage collector rests meanwhile.

    Modules make hundreds of thousands of objects that stay, and the collector would walk them again
    and again, which `import torch` takes much longer for. A process that keeps objects out of
    the collector's sight already (`gc.freeze`), as the engine's does, keeps these out too.
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
