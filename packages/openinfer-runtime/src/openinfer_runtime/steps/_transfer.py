"""Copies to and from the device that do not block the host."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class Download:
    """A tensor that is being copied to the host."""

    tensor: torch.Tensor
    arrived: torch.cuda.Event | None

    def wait(self) -> npt.NDArray[np.int32]:
        """Returns the numbers once they have arrived. Releases the GIL while it blocks."""
        if self.arrived is not None:
            self.arrived.synchronize()
        numbers: npt.NDArray[np.int32] = self.tensor.numpy()
        return numbers


def staged(num_numbers: int, device: torch.device) -> torch.Tensor:
    """Returns [num_numbers], int64, in host memory that can be copied to the device without a wait.

    Each copy needs a new tensor, because the copies of two steps may be in flight. The memory is
    not allocated anew: torch's allocator reuses it once its copy is done.
    """
    return torch.empty(num_numbers, dtype=torch.int64, pin_memory=device.type == "cuda")


def download(tensor: torch.Tensor) -> Download:
    """Starts to copy an int32 tensor to the host."""
    if tensor.device.type != "cuda":
        return Download(tensor, None)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    # The host spins on an event of this kind. Waking up from a blocking wait would take long
    # compared with a step of a small model.
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return Download(host, arrived)
