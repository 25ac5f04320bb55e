"""fused_attention in Triton: one kernel for decode steps, two for prefills."""

from typing import Any

import torch
import triton

from openinfer_kernels.gpu._support import (
    TRITON_DTYPES,
    CompileCase,
    launches_dependents,
    why_not_triton,
)
from openinfer_kernels.ops.fused_attention import (
    AttentionStep,
    FusedAttention,
    FusedAttentionSpec,
)
from openinfer_kernels.ops.fused_attention._shared_prefixes import UNIT_MEMBERS
from openinfer_kernels.ops.fused_attention._triton_decode_kernels import (
    decode_kernel,
    prepare_kernel,
)
from openinfer_kernels.ops.fused_attention._triton_shared_prefix_kernels import shared_prefix_kernel
from openinfer_kernels.ops.fused_attention._tuning import (
    MAX_SEQS,
    NUM_STAGES,
    PREPARED_TOKENS,
    by_load,
    constexprs,
    load_of,
    prepare_constexprs,
    registers_of,
    shared_constexprs,
    sharing,
)
from openinfer_kernels.ops.paged_attention import PagedAttentionSpec, plan_paged_attention


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
        self._attend = plan_paged_attention(spec.attention, device)
        self._whole_spec, self._spec = spec, spec.attention
        self._eps = spec.norm_eps or 0.0
        self._constexprs = constexprs(spec)
        self._prepare_constexprs = prepare_constexprs(spec)
        self._has_pdl = launches_dependents(device)
        self._launch = {"launch_pdl": True} if self._has_pdl else {}
        # Zeros, which the kernel leaves as zeros. Graphs keep the address.
        num_counts = MAX_SEQS * spec.attention.num_kv_heads
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
        if step.max_seqlen_q > 1 or not 0 < num_seqs <= MAX_SEQS:
            q = self._prepared(qkv, norm_weights, cos_sin, step, k_cache, v_cache)
            out = self._attend(
                q,
                k_cache,
                v_cache,
                step.cu_seqlens_q,
                step.seq_lens,
                step.block_table,
                step.max_seqlen_q,
                step.max_seqlen_k,
            )
            return out.view(len(qkv), -1)
        spec, device = self._spec, qkv.device
        group, num_kv_heads = spec.num_heads // spec.num_kv_heads, spec.num_kv_heads
        load = load_of(num_seqs)
        # Never fewer than one, so that few heads of one sequence still split.
        target_units = max(1, load.extra_programs // num_kv_heads)
        num_units = num_seqs + target_units
        shared = self._attend_shared(qkv, norm_weights, cos_sin, step, k_cache, v_cache)
        out = torch.empty(
            (len(qkv), spec.num_heads * spec.head_dim), dtype=qkv.dtype, device=device
        )
        shape = (num_units, num_kv_heads, group, spec.head_dim)
        acc = torch.empty(shape, dtype=torch.float32, device=device)
        lse = torch.empty(shape, dtype=torch.float32, device=device)
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
            *shared,
            k_cache.stride(0),
            step.block_table.stride(0),
            num_seqs,
            target_units,
            spec.scale,
            self._eps,
            PDL=self._has_pdl,
            **self._constexprs,
            **sharing(step.shared is not None),
            **by_load(self._whole_spec, num_seqs),
            num_warps=4,
            num_stages=NUM_STAGES,
            maxnreg=registers_of(num_seqs, step.shared is not None),
            **self._launch,
        )
        return out

    def _attend_shared(
        self,
        qkv: torch.Tensor,
        norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
        cos_sin: torch.Tensor,
        step: AttentionStep,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """Attends to shared prefixes; their tables and what was found, for the decode kernel."""
        shared = step.shared
        if shared is None:
            return (None,) * 3
        sizes = shared_constexprs(self._whole_spec)
        num_units, num_rows = len(shared.units), UNIT_MEMBERS * sizes["GROUP_PAD"]
        shape = (num_units * self._spec.num_kv_heads, num_rows, self._spec.head_dim)
        acc = torch.empty(shape, dtype=torch.float32, device=qkv.device)
        lse = torch.empty(shape[:2], dtype=torch.float32, device=qkv.device)
        kernel: Any = shared_prefix_kernel
        kernel[(shape[0] * num_rows // sizes["ROWS"],)](
            qkv,
            norm_weights[0] if norm_weights else None,
            cos_sin,
            k_cache,
            v_cache,
            step.cu_seqlens_q,
            step.seq_lens,
            step.block_table,
            shared.units,
            acc,
            lse,
            k_cache.stride(0),
            step.block_table.stride(0),
            self._spec.scale,
            self._eps,
            PDL=self._has_pdl,
            **sizes,
            num_warps=4,
            num_stages=NUM_STAGES,
            **self._launch,
        )
        return shared.rows, acc, lse

    def _prepared(
        self,
        qkv: torch.Tensor,
        norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
        cos_sin: torch.Tensor,
        step: AttentionStep,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
    ) -> torch.Tensor:
        """Writes keys and values to the cache; returns queries as they are attended with."""
        spec, num_tokens = self._spec, len(qkv)
        q = torch.empty(
            (num_tokens, spec.num_heads, spec.head_dim), dtype=qkv.dtype, device=qkv.device
        )
        if num_tokens == 0:
            return q
        q_norm, k_norm = norm_weights or (None, None)
        kernel: Any = prepare_kernel
        kernel[(qkv.shape[1], triton.cdiv(num_tokens, PREPARED_TOKENS))](
            qkv,
            q_norm,
            k_norm,
            cos_sin,
            step.positions,
            step.slot_mapping,
            q,
            k_cache,
            v_cache,
            k_cache.stride(0),
            num_tokens,
            self._eps,
            PDL=self._has_pdl,
            **self._prepare_constexprs,
            num_warps=4,
            **self._launch,
        )
        return q


# Qwen3's heads, an odd group of few dimensions, the widest heads.
_COMPILED = {
    torch.bfloat16: ((32, 8, 128), (7, 1, 64), (16, 4, 256)),
    torch.float16: ((32, 8, 128),),
    torch.float32: ((7, 1, 64), (16, 4, 256)),
}


def compile_cases() -> list[CompileCase]:
    """The decode kernel over the heads above, for each load, and the other."""
    cases = []
    for dtype, shapes in _COMPILED.items():
        for heads in shapes:
            cases += [_decode_case(dtype, heads, num_seqs) for num_seqs in (1, 8, 1024)]
            cases.append(_decode_case(dtype, heads, 64, True))
            cases.append(_shared_case(dtype, heads))
            cases.append(_prepare_case(dtype, heads))
    return cases


def _compiled_spec(dtype: torch.dtype, heads: tuple[int, int, int]) -> FusedAttentionSpec:
    attention = PagedAttentionSpec(
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        block_size=16,
        scale=1.0,
        dtype=dtype,
    )
    return FusedAttentionSpec(attention=attention, norm_eps=1e-6)


def _shared_case(dtype: torch.dtype, heads: tuple[int, int, int]) -> CompileCase:
    name = TRITON_DTYPES[dtype]
    tables = ("cu_seqlens_q", "seq_lens", "block_table", "units")
    return CompileCase(
        name=f"fused_attention.shared-{name}-{heads[0]}x{heads[1]}x{heads[2]}",
        kernel=shared_prefix_kernel,
        signature={
            **{f"{pointer}_ptr": f"*{name}" for pointer in ("qkv", "q_norm", "k_cache", "v_cache")},
            **{f"{pointer}_ptr": "*i32" for pointer in tables},
            **{f"{pointer}_ptr": "*fp32" for pointer in ("cos_sin", "acc", "lse")},
            "block_stride": "i64",
            "table_stride": "i64",
            "scale": "fp32",
            "eps": "fp32",
        },
        constexprs=shared_constexprs(_compiled_spec(dtype, heads)),
        num_stages=NUM_STAGES,
        has_pdl=True,
    )


def _prepare_case(dtype: torch.dtype, heads: tuple[int, int, int]) -> CompileCase:
    name = TRITON_DTYPES[dtype]
    pointers = ("qkv", "q_norm", "k_norm", "q_out", "k_cache", "v_cache")
    return CompileCase(
        name=f"fused_attention.prepare-{name}-{heads[0]}x{heads[1]}x{heads[2]}",
        kernel=prepare_kernel,
        signature={
            **{f"{pointer}_ptr": f"*{name}" for pointer in pointers},
            "cos_sin_ptr": "*fp32",
            "positions_ptr": "*i64",
            "slot_mapping_ptr": "*i64",
            "block_stride": "i64",
            "num_tokens": "i32",
            "eps": "fp32",
        },
        constexprs=prepare_constexprs(_compiled_spec(dtype, heads)),
        has_pdl=True,
    )


def _decode_case(
    dtype: torch.dtype, heads: tuple[int, int, int], num_seqs: int, is_shared: bool = False
) -> CompileCase:
    spec = _compiled_spec(dtype, heads)
    name, data = TRITON_DTYPES[dtype], f"*{TRITON_DTYPES[dtype]}"
    pointers = ("qkv", "q_norm", "k_norm", "k_cache", "v_cache", "out")
    integers = ("cu_seqlens_q", "seq_lens", "block_table", "count")
    of_shared = {"shared_rows_ptr": "*i32", "shared_acc_ptr": "*fp32", "shared_lse_ptr": "*fp32"}
    suffix = "-shared" if is_shared else ""
    return CompileCase(
        name=f"fused_attention.decode-{name}-{heads[0]}x{heads[1]}x{heads[2]}-{num_seqs}{suffix}",
        kernel=decode_kernel,
        signature={
            **{f"{pointer}_ptr": data for pointer in pointers},
            **{f"{pointer}_ptr": "*i32" for pointer in integers},
            "cos_sin_ptr": "*fp32",
            "acc_ptr": "*fp32",
            "lse_ptr": "*fp32",
            **(of_shared if is_shared else dict.fromkeys(of_shared)),
            "slot_mapping_ptr": "*i64",
            "block_stride": "i64",
            "table_stride": "i64",
            "num_seqs": "i32",
            "target_units": "i32",
            "scale": "fp32",
            "eps": "fp32",
        },
        constexprs={
            **constexprs(spec),
            **by_load(spec, num_seqs),
            **sharing(is_shared),
        },
        num_stages=NUM_STAGES,
        max_registers=registers_of(num_seqs, is_shared),
        has_pdl=True,
    )
