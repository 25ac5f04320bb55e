"""What every Triton backend asks about the machine, and how a kernel enters the compile gate."""

import functools
import os
import shutil

import torch
import triton
from triton.runtime.driver import driver

from openinfer_kernels.compile._case import CompileCase as CompileCase
from openinfer_kernels.gpu._gpu import gpu_of

# Gluon's names are those of one version of Triton.
_GLUON_VERSION = "3.6."
TRITON_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def why_not_triton(dtype: torch.dtype, device: torch.device) -> str | None:
    """Returns None if Triton kernels over `dtype` run on `device`, else the reason.

    The interpreter (`TRITON_INTERPRET=1` before the first import of a kernel) runs them on the CPU.
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
    """Triton has a C compiler make what launches a kernel, unless its cache has it."""
    if os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"):
        return None
    try:
        driver.active.get_current_target()
    except Exception as error:  # of the compiler that is missing, or of what else there is not
        reason = str(error).partition("\n")[0]
        return f"Triton needs a C compiler here; install gcc, or bring its cache ({reason})"
    return None


def gpu_arch(device: torch.device) -> int | None:
    """Compute capability of a GPU, 90 for sm_90; None for no GPU."""
    gpu = gpu_of(device)
    return None if gpu is None else gpu.arch


def launches_dependents(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it ends (sm_90 and later)."""
    return (gpu_arch(device) or 0) >= 90


def why_not_hopper(device: torch.device) -> str | None:
    """Returns None if kernels in Gluon for Hopper run on this device, else the reason."""
    if (gpu_arch(device) or 0) // 10 != 9:
        return "it is for GPUs of compute capability 9"
    if not triton.__version__.startswith(_GLUON_VERSION):
        return f"it is written for Triton {_GLUON_VERSION}x, this is {triton.__version__}"
    return None


def warps_for(block: int) -> int:
    """Warps of a row-wise kernel over `block` elements: about 16 a thread, 1 to 16 warps."""
    return max(1, min(16, block // 512))
