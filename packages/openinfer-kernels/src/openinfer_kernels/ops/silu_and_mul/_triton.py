"""silu_and_mul in Triton: one program for each token and block of columns; float32 inside."""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from typing import Any

import torch
import triton
import triton.language as tl

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._support import TRITON_DTYPES, why_not_triton
from openinfer_kernels.ops.silu_and_mul import SiluAndMul, SiluAndMulSpec

# Columns of a program.
_BLOCK = 1024


def supports(spec: SiluAndMulSpec, device: torch.device) -> str | None:
    """Returns None for float dtypes on a GPU, else the reason."""
    return why_not_triton(spec.dtype, device)


@triton.jit
def _silu_and_mul_kernel(gate_up_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < SIZE
    row = gate_up_ptr + token * (2 * SIZE)
    gate = tl.load(row + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row + SIZE + cols, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + token * SIZE + cols, out.to(out_ptr.dtype.element_ty), mask=mask)


def plan(spec: SiluAndMulSpec, device: torch.device | str) -> SiluAndMul:
    """Returns `silu_and_mul` for a spec and a device."""
    size = spec.intermediate_size
    num_blocks = triton.cdiv(size, _BLOCK)
    kernel: Any = _silu_and_mul_kernel

    def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
        num_tokens = gate_up.shape[0]
        out = torch.empty((num_tokens, size), dtype=gate_up.dtype, device=gate_up.device)
        if num_tokens:
            kernel[(num_tokens, num_blocks)](gate_up, out, SIZE=size, BLOCK=_BLOCK, num_warps=4)
        return out

    return silu_and_mul


def compile_cases() -> list[CompileCase]:
    """Returns cases with the widest MLP of the Qwen3 family, in each dtype."""
    return [
        CompileCase(
            name=f"silu_and_mul-{dtype}-25600",
            kernel=_silu_and_mul_kernel,
            signature={"gate_up_ptr": f"*{dtype}", "out_ptr": f"*{dtype}"},
            constexprs={"SIZE": 25_600, "BLOCK": _BLOCK},
        )
        for dtype in TRITON_DTYPES.values()
    ]
