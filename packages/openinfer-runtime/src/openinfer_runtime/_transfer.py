"""Copies to and from the device that do not make the host wait."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_TURNS = 4


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


class UploadRing:
    """Host memory that arrays of int64 go to a device from, without waiting; one thread.

    Each array has a turn of its own, taken again after `_TURNS` others: by then its step has been
    waited for, since at most two are in flight.
    """

    def __init__(self, device: torch.device) -> None:
        """Allocates nothing yet."""
        self._device = device
        self._turns: list[torch.Tensor] = []
        self._arrays: list[npt.NDArray[np.int64]] = []
        self._turn = 0

    def next(self, num_numbers: int) -> npt.NDArray[np.int64]:
        """[num_numbers] of the next turn, to be filled and, if need be, sent."""
        self.reserve(num_numbers)
        self._turn = (self._turn + 1) % _TURNS
        return self._arrays[self._turn][:num_numbers]

    def send(self, target: torch.Tensor) -> None:
        """Starts copying what was filled in last to a tensor of that length."""
        target.copy_(self._turns[self._turn][: len(target)], non_blocking=True)

    def reserve(self, num_numbers: int) -> None:
        """Makes room for arrays of up to so many numbers, which takes its time."""
        if self._turns and len(self._turns[0]) >= num_numbers:
            return
        # Copies under way keep the memory that they read.
        is_pinned = self._device.type == "cuda"
        self._turns = [
            torch.empty(num_numbers, dtype=torch.int64, pin_memory=is_pinned) for _ in range(_TURNS)
        ]
        self._arrays = [turn.numpy() for turn in self._turns]


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
