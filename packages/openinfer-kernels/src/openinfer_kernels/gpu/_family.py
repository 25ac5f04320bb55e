"""Architecture family and number of multiprocessors of a GPU, by which kernels are tuned."""

from collections.abc import Mapping
from typing import Literal, TypeVar

import torch

from openinfer_kernels.gpu._gpu import gpu_of
from openinfer_kernels.gpu._support import gpu_arch

GpuFamily = Literal["ampere", "ada", "hopper", "blackwell", "rtx_blackwell"]
"""Families by compute capability: 8.0 to 8.7, 8.9, 9.x, 10.x and 12.x."""

T = TypeVar("T")

_FAMILIES: dict[int, GpuFamily] = {9: "hopper", 10: "blackwell", 12: "rtx_blackwell"}


def gpu_family(device: torch.device) -> GpuFamily | None:
    """Returns the family of a GPU, or of the GPU that the meta device stands for; None for a CPU.

    A GPU of an unknown family is None as well, so it gets the default tuning.
    """
    arch = gpu_arch(device)
    if arch is None:
        return None
    if arch // 10 == 8:
        return "ada" if arch == 89 else "ampere"
    return _FAMILIES.get(arch // 10)


def tuned_for(table: Mapping[str, T], device: torch.device) -> T:
    """Returns the table's entry for the family of this device, or else its entry "default"."""
    family = gpu_family(device)
    return table[family if family is not None and family in table else "default"]


def num_multiprocessors(device: torch.device) -> int:
    """Returns how many multiprocessors a GPU has, or the GPU that the meta device stands for.

    On a CPU the result is 2. Triton's interpreter runs programs one after the other, and 2 are
    enough to test kernels whose programs share tiles.
    """
    gpu = gpu_of(device)
    return 2 if gpu is None else gpu.num_multiprocessors
