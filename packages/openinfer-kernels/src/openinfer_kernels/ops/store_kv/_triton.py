"""store_kv in Triton: one program for each token copies its key and its value."""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from typing import Any

import torch
import triton
import triton.language as tl

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._support import TRITON_DTYPES, warps_for, why_not_triton
from openinfer_kernels.ops.store_kv import StoreKV, StoreKVSpec


def supports(spec: StoreKVSpec, device: torch.device) -> str | None:
    """Returns None for float dtypes and at most 65,536 elements per token, else the reason."""
    if spec.num_kv_heads * spec.head_dim > 65_536:
        return f"a token has {spec.num_kv_heads} x {spec.head_dim} elements, at most 65536 fit"
    return why_not_triton(spec.dtype, device)


@triton.jit
def _store_kv_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_mapping_ptr,
    k_stride,
    v_stride,
    block_stride,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    target = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * WIDTH
    cols = tl.arange(0, PAD)
    mask = cols < WIDTH
    k = tl.load(k_ptr + token * k_stride + cols, mask=mask)
    v = tl.load(v_ptr + token * v_stride + cols, mask=mask)
    tl.store(k_cache_ptr + target + cols, k, mask=mask)
    tl.store(v_cache_ptr + target + cols, v, mask=mask)


def _constexprs(spec: StoreKVSpec) -> dict[str, int]:
    width = spec.num_kv_heads * spec.head_dim
    return {
        "BLOCK_SIZE": spec.block_size,
        "WIDTH": width,
        "PAD": int(triton.next_power_of_2(width)),
    }


def plan(spec: StoreKVSpec, device: torch.device | str) -> StoreKV:
    """Returns `store_kv` for a spec and a device."""
    constexprs = _constexprs(spec)
    kernel: Any = _store_kv_kernel
    num_warps = warps_for(constexprs["PAD"])

    def store_kv(
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        if k.shape[0]:
            kernel[(k.shape[0],)](
                k,
                v,
                k_cache,
                v_cache,
                slot_mapping,
                k.stride(0),
                v.stride(0),
                k_cache.stride(0),
                **constexprs,
                num_warps=num_warps,
            )

    return store_kv


def compile_cases() -> list[CompileCase]:
    """Returns cases with 8 heads of 128 and an odd number of heads of 64, in each dtype."""
    cases = []
    for torch_dtype, dtype in TRITON_DTYPES.items():
        for num_kv_heads, head_dim in ((8, 128), (7, 64)):
            spec = StoreKVSpec(
                num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=16, dtype=torch_dtype
            )
            constexprs = _constexprs(spec)
            pointers = ("k_ptr", "v_ptr", "k_cache_ptr", "v_cache_ptr")
            strides = ("k_stride", "v_stride", "block_stride")
            cases.append(
                CompileCase(
                    name=f"store_kv-{dtype}-{num_kv_heads}x{head_dim}",
                    kernel=_store_kv_kernel,
                    signature={
                        **dict.fromkeys(pointers, f"*{dtype}"),
                        "slot_mapping_ptr": "*i64",
                        **dict.fromkeys(strides, "i64"),
                    },
                    constexprs=constexprs,
                    num_warps=warps_for(constexprs["PAD"]),
                )
            )
    return cases
