"""fused_attention in Triton: one kernel for decode steps, the ops in turn for prefills."""

from typing import Any

import torch
import triton

from openinfer_kernels._triton_support import (
    TRITON_DTYPES,
    CompileCase,
    launches_dependents,
    why_not_triton,
)
from openinfer_kernels.fused_attention import AttentionStep, FusedAttention, FusedAttentionSpec
from openinfer_kernels.fused_attention._composed import plan as plan_composed
from openinfer_kernels.fused_attention._triton_kernels import decode_kernel
from openinfer_kernels.paged_attention import PagedAttentionSpec

_TILE_KEYS = 64
# Programs beyond one a sequence and key head: what long sequences can be split into.
_EXTRA_PROGRAMS = 264
_MAX_SEQS = 1024
_PADDED_SEQS = (8, 64, 256, _MAX_SEQS)
# Up to here programs are few enough to hold their first tile in registers.
_FEW_SEQS = 8


def supports(spec: FusedAttentionSpec, device: torch.device) -> str | None:
    """Heads of 32, 64, 128 or 256 dimensions."""
    if spec.attention.head_dim not in (32, 64, 128, 256):
        return f"head_dim must be 32, 64, 128 or 256, got {spec.attention.head_dim}"
    return why_not_triton(spec.attention.dtype, device)


def plan(spec: FusedAttentionSpec, device: torch.device | str) -> FusedAttention:
    """Binds fused_attention."""
    return _Fused(spec, torch.device(device))


class _Fused:
    def __init__(self, spec: FusedAttentionSpec, device: torch.device) -> None:
        self._prefill = plan_composed(spec, device)
        self._spec = spec.attention
        self._eps = spec.norm_eps or 0.0
        self._constexprs = constexprs(spec)
        self._has_pdl = launches_dependents(device)
        self._launch = {"launch_pdl": True} if self._has_pdl else {}
        # Never fewer than one, so that few heads of one sequence still split.
        self._target_units = max(1, _EXTRA_PROGRAMS // spec.attention.num_kv_heads)
        # Zeros, which the kernel leaves as zeros. Graphs keep the address.
        num_counts = _MAX_SEQS * spec.attention.num_kv_heads
        self._counts = torch.zeros(num_counts, dtype=torch.int32, device=device)

    def __call__(
        self,
        qkv: torch.Tensor,
        norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
        cos_sin: torch.Tensor,
        step: AttentionStep,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        /,
    ) -> torch.Tensor:
        num_seqs = step.seq_lens.shape[0]
        if step.max_seqlen_q > 1 or not 0 < num_seqs <= _MAX_SEQS:
            return self._prefill(qkv, norm_weights, cos_sin, step, k_cache, v_cache)
        spec, device = self._spec, qkv.device
        group, num_kv_heads = spec.num_heads // spec.num_kv_heads, spec.num_kv_heads
        num_units = num_seqs + self._target_units
        out = torch.empty(
            (len(qkv), spec.num_heads * spec.head_dim), dtype=qkv.dtype, device=device
        )
        lse = torch.empty((num_units, num_kv_heads, group), dtype=torch.float32, device=device)
        shape = (num_units, num_kv_heads, group, spec.head_dim)
        acc = torch.empty(shape, dtype=torch.float32, device=device)
        q_norm, k_norm = norm_weights or (None, None)
        kernel: Any = decode_kernel
        kernel[(num_units * num_kv_heads,)](
            qkv,
            q_norm,
            k_norm,
            cos_sin,
            step.slot_mapping,
            k_cache,
            v_cache,
            step.cu_seqlens_q,
            step.seq_lens,
            step.block_table,
            out,
            acc,
            lse,
            self._counts,
            k_cache.stride(0),
            step.block_table.stride(0),
            num_seqs,
            self._target_units,
            spec.scale,
            self._eps,
            PDL=self._has_pdl,
            **self._constexprs,
            **by_number(num_seqs),
            num_warps=4,
            num_stages=3,
            **self._launch,
        )
        return out


def by_number(num_seqs: int) -> dict[str, Any]:
    """Compile-time choices that follow from the number of sequences.

    Programs of few sequences have registers to spare; of many, more of them run at a time without.
    """
    is_few = num_seqs <= _FEW_SEQS
    return {
        # Few sizes, so that few kernels are compiled for all the batches of a server.
        "NUM_SEQS_PAD": next(size for size in _PADDED_SEQS if num_seqs <= size),
        "EARLY": is_few,
        "CHUNKS": 16 if is_few else 4,
    }


def constexprs(spec: FusedAttentionSpec) -> dict[str, Any]:
    """Compile-time choices, but PDL and what follows from the number of sequences."""
    of = spec.attention
    group = of.num_heads // of.num_kv_heads
    return {
        "NUM_HEADS": of.num_heads,
        "NUM_KV_HEADS": of.num_kv_heads,
        "HEAD_DIM": of.head_dim,
        "BLOCK_SIZE": of.block_size,
        # A matrix product has at least 16 rows; the group's heads share them.
        "ROWS": max(16, triton.next_power_of_2(group)),
        "TILE": _TILE_KEYS // max(1, of.head_dim * of.dtype.itemsize // 256),
        "GROUP_PAD": triton.next_power_of_2(group),
        "NORM": spec.norm_eps is not None,
        "PRECISION": "ieee" if of.dtype is torch.float32 else "tf32",
    }


# Qwen3's heads, an odd group of few dimensions, the widest heads.
_COMPILED = {
    torch.bfloat16: ((32, 8, 128), (7, 1, 64), (16, 4, 256)),
    torch.float16: ((32, 8, 128),),
    torch.float32: ((7, 1, 64), (16, 4, 256)),
}


def compile_cases() -> list[CompileCase]:
    """The decode kernel over the heads above, for one and for many sequences."""
    return [
        _compile_case(dtype, heads, num_seqs)
        for dtype, shapes in _COMPILED.items()
        for heads in shapes
        for num_seqs in (1, 256)
    ]


def _compile_case(dtype: torch.dtype, heads: tuple[int, int, int], num_seqs: int) -> CompileCase:
    attention = PagedAttentionSpec(
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        block_size=16,
        scale=1.0,
        dtype=dtype,
    )
    spec = FusedAttentionSpec(attention=attention, norm_eps=1e-6)
    name, data = TRITON_DTYPES[dtype], f"*{TRITON_DTYPES[dtype]}"
    pointers = ("qkv", "q_norm", "k_norm", "k_cache", "v_cache", "out")
    integers = ("cu_seqlens_q", "seq_lens", "block_table", "count")
    return CompileCase(
        name=f"fused_attention.decode-{name}-{heads[0]}x{heads[1]}x{heads[2]}-{num_seqs}",
        kernel=decode_kernel,
        signature={
            **{f"{pointer}_ptr": data for pointer in pointers},
            **{f"{pointer}_ptr": "*i32" for pointer in integers},
            "cos_sin_ptr": "*fp32",
            "acc_ptr": "*fp32",
            "lse_ptr": "*fp32",
            "slot_mapping_ptr": "*i64",
            "block_stride": "i64",
            "table_stride": "i64",
            "num_seqs": "i32",
            "target_units": "i32",
            "scale": "fp32",
            "eps": "fp32",
        },
        constexprs={**constexprs(spec), **by_number(num_seqs)},
        num_stages=3,
        has_pdl=True,
    )
