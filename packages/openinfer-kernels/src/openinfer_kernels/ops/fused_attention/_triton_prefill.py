"""Launches of a step with prefills: norms, rotation and cache writes, then `paged_attention`."""

from typing import Any

import torch
import triton

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._family import tuned_for
from openinfer_kernels.gpu._support import TRITON_DTYPES, launches_dependents
from openinfer_kernels.ops.fused_attention import AttentionStep, FusedAttentionSpec
from openinfer_kernels.ops.fused_attention._triton_prefill_kernels import prepare_kernel
from openinfer_kernels.ops.fused_attention._tuning import SIZES, prepare_constexprs
from openinfer_kernels.ops.paged_attention import plan_paged_attention


class PrefillLauncher:
    """Launches `prepare_kernel`, then the `paged_attention` that suits the device."""

    def __init__(self, spec: FusedAttentionSpec, device: torch.device) -> None:
        """Looks up the sizes for this device and plans `paged_attention`."""
        self._attend = plan_paged_attention(spec.attention, device)
        self._spec = spec.attention
        self._eps = spec.norm_eps or 0.0
        self._sizes = tuned_for(SIZES, device)
        self._constexprs = prepare_constexprs(spec, self._sizes)
        self._has_pdl = launches_dependents(device)
        self._launch = {"launch_pdl": True} if self._has_pdl else {}

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
        """Runs a step with any numbers of tokens; see `FusedAttention`."""
        q = self._prepare(qkv, norm_weights, cos_sin, step, k_cache, v_cache)
        return self._attend(q, k_cache, v_cache, step).view(len(qkv), -1)

    def _prepare(
        self,
        qkv: torch.Tensor,
        norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
        cos_sin: torch.Tensor,
        step: AttentionStep,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
    ) -> torch.Tensor:
        """Writes keys and values to the cache and returns the queries, normalised and rotated."""
        spec, num_tokens = self._spec, len(qkv)
        q = torch.empty(
            (num_tokens, spec.num_heads, spec.head_dim), dtype=qkv.dtype, device=qkv.device
        )
        if num_tokens == 0:
            return q
        q_norm, k_norm = norm_weights or (None, None)
        kernel: Any = prepare_kernel
        kernel[(qkv.shape[1], triton.cdiv(num_tokens, self._sizes.prepare_block_m))](
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
            **self._constexprs,
            num_warps=4,
            **self._launch,
        )
        return q


def compile_case(spec: FusedAttentionSpec) -> CompileCase:
    """Returns the kernel that runs before `paged_attention`."""
    of = spec.attention
    name = TRITON_DTYPES[of.dtype]
    pointers = ("qkv", "q_norm", "k_norm", "q_out", "k_cache", "v_cache")
    return CompileCase(
        name=f"fused_attention.prepare-{name}-{of.num_heads}x{of.num_kv_heads}x{of.head_dim}",
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
        constexprs=prepare_constexprs(spec, SIZES["default"]),
        has_pdl=True,
    )
