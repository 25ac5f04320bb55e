"""What every Triton backend asks about the machine, and how a kernel enters the compile gate."""

import functools
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton.runtime.driver import driver

from openinfer_kernels.compile._builds import noted_arch

# Gluon's names are those of one version of Triton.
_GLUON_VERSION = "3.6."
TRITON_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCase:
    """One kernel with one set of compile-time choices, as a launch would use it.

    Attributes:
        name: Unique among the kernels, for example "rms_norm-bf16-4096".
        kernel: The `triton.jit` or `gluon.jit` function.
        signature: Run-time argument name to Triton type ("*bf16", "i64", "fp32"); None where
            launches give None, which Triton compiles for.
        constexprs: Compile-time argument name to value.
        num_warps: Warps of a program.
        num_stages: Depth of the software pipeline.
        max_registers: Most registers of a thread; None for what the compiler finds best.
        has_pdl: Whether the kernel has a compile-time choice PDL, which is true from sm_90 on.
        archs: Compute capabilities that it is for, `compile_gate.EVERY_SHAPE` among them; None
            for all.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str | None]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    max_registers: int | None = None
    has_pdl: bool = False
    archs: tuple[int, ...] | None = None


def why_not_triton(dtype: torch.dtype, device: torch.device) -> str | None:
    """Returns None if Triton kernels over `dtype` run on `device`, else the reason.

    The interpreter (`TRITON_INTERPRET=1` before the first import of a kernel) runs them on the CPU.
    The meta device runs nothing, but its launches may be noted (`noted_launches`).
    """
    if dtype not in TRITON_DTYPES:
        return f"no Triton kernel for {dtype}"
    if device.type == "cuda":
        return _why_no_launchers()
    if device.type == "meta" and noted_arch():
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
    if device.type == "meta":
        return noted_arch()
    if device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


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
