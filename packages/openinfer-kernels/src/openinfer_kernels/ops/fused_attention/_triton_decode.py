"""Launches of a decode step: over shared prefixes if there are any, then over all other keys."""

from typing import Any

import torch

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._family import tuned_for
from openinfer_kernels.gpu._support import TRITON_DTYPES, launches_dependents
from openinfer_kernels.ops.fused_attention import AttentionStep, FusedAttentionSpec
from openinfer_kernels.ops.fused_attention._shared_prefixes import UNIT_MEMBERS
from openinfer_kernels.ops.fused_attention._triton_decode_kernels import decode_kernel
from openinfer_kernels.ops.fused_attention._triton_shared_prefix_kernels import (
    shared_prefix_kernel,
)
from openinfer_kernels.ops.fused_attention._tuning import (
    MAX_SEQS,
    SIZES,
    decode_constexprs,
    shared_constexprs,
)


class DecodeLauncher:
    """Launches `decode_kernel`, after `shared_prefix_kernel` where the step shares prefixes."""

    def __init__(self, spec: FusedAttentionSpec, device: torch.device) -> None:
        """Looks up the sizes for this device and allocates the chunk counters."""
        self._spec = spec
        self._eps = spec.norm_eps or 0.0
        self._sizes = tuned_for(SIZES, device)
        self._constexprs: dict[tuple[int, bool], dict[str, Any]] = {}
        self._shared_constexprs = shared_constexprs(spec, self._sizes)
        self._has_pdl = launches_dependents(device)
        self._launch = {"launch_pdl": True} if self._has_pdl else {}
        # Chunks that have finished, for each sequence and key head. The kernel resets them to 0.
        # Allocated once, because captured graphs keep the address.
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
        """Runs a step of one token per sequence; see `FusedAttention`."""
        spec, sizes, device = self._spec.attention, self._sizes, qkv.device
        num_seqs, num_kv_heads = step.seq_lens.shape[0], spec.num_kv_heads
        is_shared = step.shared is not None
        # At least one, so that few key heads of one sequence are still split.
        target_units = max(1, sizes.decode_sizes(num_seqs).extra_programs // num_kv_heads)
        num_units = num_seqs + target_units
        shared = self._attend_shared(qkv, norm_weights, cos_sin, step, k_cache, v_cache)
        out = torch.empty(
            (len(qkv), spec.num_heads * spec.head_dim), dtype=qkv.dtype, device=device
        )
        shape = (num_units, num_kv_heads, spec.num_heads // num_kv_heads, spec.head_dim)
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
            **self._constexprs_of(num_seqs, is_shared),
            num_warps=4,
            num_stages=sizes.num_stages,
            maxnreg=sizes.decode_registers(num_seqs, is_shared),
            **self._launch,
        )
        return out

    def _constexprs_of(self, num_seqs: int, is_shared: bool) -> dict[str, Any]:
        """Returns `decode_constexprs`, computed once for each shape of a step."""
        found = self._constexprs.get((num_seqs, is_shared))
        if found is None:
            found = decode_constexprs(self._spec, self._sizes, num_seqs, is_shared)
            self._constexprs[num_seqs, is_shared] = found
        return found

    def _attend_shared(
        self,
        qkv: torch.Tensor,
        norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
        cos_sin: torch.Tensor,
        step: AttentionStep,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """Attends to shared prefixes.

        Returns:
            Arguments of the decode kernel: `SharedPrefixes.rows`, partial results and their
            logarithms; three times None if the step shares nothing.
        """
        shared = step.shared
        if shared is None:
            return (None,) * 3
        spec, constexprs = self._spec.attention, self._shared_constexprs
        num_units, num_rows = len(shared.units), UNIT_MEMBERS * constexprs["GROUP_PAD"]
        shape = (num_units * spec.num_kv_heads, num_rows, spec.head_dim)
        acc = torch.empty(shape, dtype=torch.float32, device=qkv.device)
        lse = torch.empty(shape[:2], dtype=torch.float32, device=qkv.device)
        kernel: Any = shared_prefix_kernel
        kernel[(shape[0] * num_rows // constexprs["BLOCK_M"],)](
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
            spec.scale,
            self._eps,
            PDL=self._has_pdl,
            **constexprs,
            num_warps=4,
            num_stages=self._sizes.num_stages,
            **self._launch,
        )
        return shared.rows, acc, lse


def compile_cases(spec: FusedAttentionSpec) -> list[CompileCase]:
    """Returns the decode kernel at each size, with and without sharing, and the shared kernel."""
    cases = [_decode_case(spec, num_seqs, is_shared=False) for num_seqs in (1, 8, 1024)]
    return [*cases, _decode_case(spec, 64, is_shared=True), _shared_case(spec)]


def _decode_case(spec: FusedAttentionSpec, num_seqs: int, is_shared: bool) -> CompileCase:
    of, sizes = spec.attention, SIZES["default"]
    name = TRITON_DTYPES[of.dtype]
    pointers = ("qkv", "q_norm", "k_norm", "k_cache", "v_cache", "out")
    integers = ("cu_seqlens_q", "seq_lens", "block_table", "count")
    shared = {"shared_rows_ptr": "*i32", "shared_acc_ptr": "*fp32", "shared_lse_ptr": "*fp32"}
    suffix = "-shared" if is_shared else ""
    shape = f"{of.num_heads}x{of.num_kv_heads}x{of.head_dim}"
    return CompileCase(
        name=f"fused_attention.decode-{name}-{shape}-{num_seqs}{suffix}",
        kernel=decode_kernel,
        signature={
            **{f"{pointer}_ptr": f"*{name}" for pointer in pointers},
            **{f"{pointer}_ptr": "*i32" for pointer in integers},
            "cos_sin_ptr": "*fp32",
            "acc_ptr": "*fp32",
            "lse_ptr": "*fp32",
            **(shared if is_shared else dict.fromkeys(shared)),
            "slot_mapping_ptr": "*i64",
            "block_stride": "i64",
            "table_stride": "i64",
            "num_seqs": "i32",
            "target_units": "i32",
            "scale": "fp32",
            "eps": "fp32",
        },
        constexprs=decode_constexprs(spec, sizes, num_seqs, is_shared),
        num_stages=sizes.num_stages,
        max_registers=sizes.decode_registers(num_seqs, is_shared),
        has_pdl=True,
    )


def _shared_case(spec: FusedAttentionSpec) -> CompileCase:
    of, sizes = spec.attention, SIZES["default"]
    name = TRITON_DTYPES[of.dtype]
    tables = ("cu_seqlens_q", "seq_lens", "block_table", "units")
    return CompileCase(
        name=f"fused_attention.shared-{name}-{of.num_heads}x{of.num_kv_heads}x{of.head_dim}",
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
        constexprs=shared_constexprs(spec, sizes),
        num_stages=sizes.num_stages,
        has_pdl=True,
    )
