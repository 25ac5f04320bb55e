"""Conditions of Triton and Gluon kernels: dtype, device, compiler and Triton's version."""

import functools
import os
import shutil

import torch
import triton
from triton.runtime.driver import driver

from openinfer_kernels.gpu._gpu import gpu_of

# Gluon is experimental: each version of Triton has other names.
_GLUON_VERSION = "3.6."
TRITON_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def why_not_triton(dtype: torch.dtype, device: torch.device) -> str | None:
    """Returns None if Triton kernels over `dtype` run on `device`, else the reason.

    Triton's interpreter (`TRITON_INTERPRET=1` before the import of a kernel) runs on the CPU.
    The meta device runs nothing, but a dry run notes its launches (`note_launches`).
    """
    if dtype not in TRITON_DTYPES:
        return f"no Triton kernel for {dtype}"
    if device.type == "cuda":
        return _why_no_launchers()
    if device.type == "meta" and gpu_of(device):
        return None
    if device.type == "cpu" and triton.knobs.runtime.interpret:
        return None
    return f"Triton needs a CUDA device, this is {device.type}"


@functools.cache
def _why_no_launchers() -> str | None:
    """Returns None if Triton has its launchers cached or a C compiler for them, else why not."""
    if os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"):
        return None
    try:
        driver.active.get_current_target()
    except Exception as error:  # no compiler, or another part of Triton's driver is missing
        reason = str(error).partition("\n")[0]
        return f"Triton needs a C compiler here; install gcc, or bring its cache ({reason})"
    return None


def gpu_arch(device: torch.device) -> int | None:
    """Returns the compute capability of a GPU, 90 for sm_90; None for another device."""
    if device.type != "cuda":
        gpu = gpu_of(device)
        return None if gpu is None else gpu.arch
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def launches_dependents(device: torch.device) -> bool:
    """Whether a kernel may start before the one before it has ended (sm_90 and later)."""
    return (gpu_arch(device) or 0) >= 90


def why_not_hopper(device: torch.device) -> str | None:
    """Returns None if Gluon kernels for Hopper run on this device, else the reason."""
    if (gpu_arch(device) or 0) // 10 != 9:
        return "it is for GPUs of compute capability 9.x"
    if not triton.__version__.startswith(_GLUON_VERSION):
        return f"it is written for Triton {_GLUON_VERSION}x, this is {triton.__version__}"
    return None


def warps_for(block: int) -> int:
    """Returns the warps of a kernel over rows of `block` elements: about 16 per thread."""
    return max(1, min(16, block // 512))
