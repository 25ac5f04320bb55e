"""Copies to and from the device that do not make the host wait."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class Download:
    """A tensor on its way to the host."""

    tensor: torch.Tensor
    arrived: torch.cuda.Event | None

    def wait(self) -> npt.NDArray[np.int32]:
        """The numbers, once they are there. Blocks in a native call, without the interpreter."""
        if self.arrived is not None:
            self.arrived.synchronize()
        numbers: npt.NDArray[np.int32] = self.tensor.numpy()
        return numbers


def staged(num_numbers: int, device: torch.device) -> torch.Tensor:
    """[num_numbers], int64, on the host, to be filled and copied to a device without waiting.

    It is new for every copy: steps may pile up, and torch's allocator knows when one is done.
    """
    return torch.empty(num_numbers, dtype=torch.int64, pin_memory=device.type == "cuda")


def download(tensor: torch.Tensor) -> Download:
    """Starts copying an int32 tensor to the host."""
    if tensor.device.type != "cuda":
        return Download(tensor, None)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    # An event of this kind spins: being woken would cost more than a small model's step has.
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return Download(host, arrived)
