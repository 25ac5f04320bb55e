"""Where kernels that are compiled on this machine lie."""

import torch

from openinfer_kernels.native import cache_folder, failure


def kernel_folder(device: torch.device | str) -> str | None:
    """Returns the folder of the kernels that are compiled for a device; None if there are none."""
    if torch.device(device).type == "cpu":
        return None if failure() is not None else str(cache_folder())
    try:
        import triton  # not every system has it
    except ModuleNotFoundError:
        return None
    return str(triton.knobs.cache.dir)
