"""Copies to a device for which the host does not wait."""

from typing import Any

import numpy.typing as npt
import torch


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Returns `array` on `device`.

    The copy is ordered with the current stream; the host does not wait for it.
    """
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    # Pinned blocks come from torch's caching allocator, which keeps them until the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True)
