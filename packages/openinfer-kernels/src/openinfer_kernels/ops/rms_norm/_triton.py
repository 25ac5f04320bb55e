"""rms_norm in Triton: one program for each row."""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._support import (
    TRITON_DTYPES,
    launches_dependents,
    warps_for,
    why_not_triton,
)
from openinfer_kernels.ops.rms_norm import RMSNorm, RMSNormSpec


def supports(spec: RMSNormSpec, device: torch.device) -> str | None:
    """Returns None for float dtypes and rows of at most 65,536 elements, else the reason."""
    if spec.hidden_size > 65_536:
        return f"one program holds a row of at most 65536 elements, got {spec.hidden_size}"
    return why_not_triton(spec.dtype, device)


@triton.jit
def _scaled(x, scale, weight):
    # Rounded before the weight multiplies, as the reference does; float32 products are exact here.
    normed = (x * scale).to(weight.dtype).to(tl.float32)
    return (normed * weight.to(tl.float32)).to(weight.dtype)


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    eps,
    inner_rows,
    outer_stride,
    inner_stride,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    # Rows are [outer, inner], so a head of a fused QKV row is normalised where it lies.
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + (row // inner_rows) * outer_stride + (row % inner_rows) * inner_stride
    cols = tl.arange(0, BLOCK)
    mask = cols < HIDDEN
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    if PDL:
        gdc_wait()
    x = tl.load(x_row + cols, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
    out = _scaled(x, scale, weight)
    tl.store(out_ptr + row * HIDDEN + cols, out, mask=mask)


def _block(hidden_size: int) -> int:
    return int(triton.next_power_of_2(hidden_size))


def plan(spec: RMSNormSpec, device: torch.device | str) -> RMSNorm:
    """Returns `rms_norm` for a spec and a device."""
    hidden, eps, block = spec.hidden_size, spec.eps, _block(spec.hidden_size)
    kernel: Any = _rms_norm_kernel
    num_warps = warps_for(block)
    has_pdl = launches_dependents(torch.device(device))
    launch = {"launch_pdl": True} if has_pdl else {}

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if out.numel() == 0:
            return out
        inner_rows, inner_stride = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
        kernel[(x.numel() // hidden,)](
            x,
            weight,
            out,
            eps,
            inner_rows,
            x.stride(0),
            inner_stride,
            HIDDEN=hidden,
            BLOCK=block,
            PDL=has_pdl,
            num_warps=num_warps,
            **launch,
        )
        return out

    return rms_norm


def compile_cases() -> list[CompileCase]:
    """Returns cases with the head dimension and the widest row of Qwen3 models, in each dtype."""
    cases = []
    for dtype in TRITON_DTYPES.values():
        for hidden in (128, 5120):
            constexprs = {"HIDDEN": hidden, "BLOCK": _block(hidden)}
            num_warps = warps_for(_block(hidden))
            pointer = f"*{dtype}"
            cases.append(
                CompileCase(
                    name=f"rms_norm-{dtype}-{hidden}",
                    kernel=_rms_norm_kernel,
                    signature={
                        "x_ptr": pointer,
                        "weight_ptr": pointer,
                        "out_ptr": pointer,
                        "eps": "fp32",
                        "inner_rows": "i32",
                        "outer_stride": "i64",
                        "inner_stride": "i64",
                    },
                    constexprs=constexprs,
                    num_warps=num_warps,
                    has_pdl=True,
                )
            )
    return cases
