"""rope in Triton: one program for each token, with all its query and key heads."""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from typing import Any

import torch
import triton
import triton.language as tl

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._support import TRITON_DTYPES, why_not_triton
from openinfer_kernels.ops.rope import Rope, RopeSpec


def supports(spec: RopeSpec, device: torch.device) -> str | None:
    """Returns None if head_dim is a power of two and a token's queries fit, else the reason."""
    if spec.head_dim & (spec.head_dim - 1):
        return f"head_dim must be a power of two, got {spec.head_dim}"
    if spec.num_heads * spec.head_dim > 16_384:
        return f"a token has {spec.num_heads} x {spec.head_dim} query elements, at most 16384 fit"
    return why_not_triton(spec.dtype, device)


@triton.jit
def _rotate(x_ptr, out_ptr, cos, sin, NUM: tl.constexpr, PAD: tl.constexpr, HALF: tl.constexpr):
    heads = tl.arange(0, PAD)[:, None]
    dims = tl.arange(0, HALF)[None, :]
    offsets = heads * (2 * HALF) + dims
    mask = (heads < NUM) & (dims < HALF)
    first = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + HALF + offsets, mask=mask, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    tl.store(out_ptr + offsets, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(out_ptr + HALF + offsets, (second * cos + first * sin).to(dtype), mask=mask)


@triton.jit
def _rope_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    cos_sin_ptr,
    positions_ptr,
    q_stride,
    k_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAD_HEADS: tl.constexpr,
    PAD_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + token)
    dims = tl.arange(0, HALF)[None, :]
    row = cos_sin_ptr + position * (2 * HALF)
    cos = tl.load(row + dims)
    sin = tl.load(row + HALF + dims)
    q_out = q_out_ptr + token * (NUM_HEADS * 2 * HALF)
    k_out = k_out_ptr + token * (NUM_KV_HEADS * 2 * HALF)
    _rotate(q_ptr + token * q_stride, q_out, cos, sin, NUM_HEADS, PAD_HEADS, HALF)
    _rotate(k_ptr + token * k_stride, k_out, cos, sin, NUM_KV_HEADS, PAD_KV_HEADS, HALF)


def _constexprs(spec: RopeSpec) -> dict[str, int]:
    return {
        "NUM_HEADS": spec.num_heads,
        "NUM_KV_HEADS": spec.num_kv_heads,
        "PAD_HEADS": int(triton.next_power_of_2(spec.num_heads)),
        "PAD_KV_HEADS": int(triton.next_power_of_2(spec.num_kv_heads)),
        "HALF": spec.head_dim // 2,
    }


def plan(spec: RopeSpec, device: torch.device | str) -> Rope:
    """Returns `rope` for a spec and a device."""
    constexprs = _constexprs(spec)
    kernel: Any = _rope_kernel

    def rope(
        q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        if q.shape[0]:
            kernel[(q.shape[0],)](
                q,
                k,
                q_out,
                k_out,
                cos_sin,
                positions,
                q.stride(0),
                k.stride(0),
                **constexprs,
                num_warps=4,
            )
        return q_out, k_out

    return rope


def compile_cases() -> list[CompileCase]:
    """Returns cases with the most heads of the Qwen3 family and an odd number, in each dtype."""
    cases = []
    for torch_dtype, dtype in TRITON_DTYPES.items():
        for num_heads, num_kv_heads, head_dim in ((64, 8, 128), (7, 1, 64)):
            spec = RopeSpec(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                dtype=torch_dtype,
            )
            pointers = dict.fromkeys(("q_ptr", "k_ptr", "q_out_ptr", "k_out_ptr"), f"*{dtype}")
            cases.append(
                CompileCase(
                    name=f"rope-{dtype}-{num_heads}x{num_kv_heads}x{head_dim}",
                    kernel=_rope_kernel,
                    signature={
                        **pointers,
                        "cos_sin_ptr": "*fp32",
                        "positions_ptr": "*i64",
                        "q_stride": "i64",
                        "k_stride": "i64",
                    },
                    constexprs=_constexprs(spec),
                )
            )
    return cases
