"""The GPU of a device, and the GPU that the meta device stands for in a dry run."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, as far as the choice of kernels depends on it.

    Attributes:
        arch: Compute capability, 90 for sm_90.
        num_multiprocessors: Number of multiprocessors.
    """

    arch: int
    num_multiprocessors: int


_meta_gpu: Gpu | None = None


def gpu_of(device: torch.device) -> Gpu | None:
    """Returns the GPU of a CUDA device, or the one that the meta device stands for; else None."""
    if device.type == "meta":
        return _meta_gpu
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return Gpu(
        arch=10 * properties.major + properties.minor,
        num_multiprocessors=properties.multi_processor_count,
    )


def set_meta_gpu(gpu: Gpu) -> None:
    """Makes the meta device stand for a GPU in this process."""
    global _meta_gpu
    _meta_gpu = gpu
