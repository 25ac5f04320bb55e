"""`openinfer warmup`: compiles the kernels of a model before its first server starts."""

import argparse
import time
from collections.abc import Sequence

from openinfer._interrupts import raise_interrupts
from openinfer._log import start_logging
from openinfer.launch._prepare import prepare
from openinfer_engine import launch_line


def warmup(namespace: argparse.Namespace, extra: Sequence[str]) -> int:
    """Starts a model as a server would, prepares all its steps, and ends.

    It logs the compilation, and prints the folder of the kernels and the time that it took.

    Raises:
        OpenInferError: the model does not start.
    """
    begun = time.monotonic()
    prepared = prepare(namespace.positional, vars(namespace), line_arguments=extra)
    raise_interrupts()
    start_logging()
    executor = launch_line(prepared.spec)
    try:
        while executor.prepare():
            pass
        device = executor.info.device
    finally:
        executor.close()
    print(
        f"{prepared.model.name} on {device} is warm after {time.monotonic() - begun:.1f} s; "
        f"kernels compiled here: {_folder(device) or 'none'}"
    )
    return 0


def _folder(device: str) -> str | None:
    from openinfer_kernels import kernel_folder

    return kernel_folder(device)
