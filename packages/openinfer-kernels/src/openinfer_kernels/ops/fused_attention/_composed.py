"""fused_attention as its parts, one after another, each by the back end that suits the device."""

from typing import Any

import torch

from openinfer_kernels.dispatch._choice import choose
from openinfer_kernels.errors import BackendUnavailable
from openinfer_kernels.ops.fused_attention import AttentionStep, FusedAttention, FusedAttentionSpec
from openinfer_kernels.ops.paged_attention import plan_paged_attention
from openinfer_kernels.ops.rms_norm import RMSNormSpec, plan_rms_norm
from openinfer_kernels.ops.rope import RopeSpec, plan_rope
from openinfer_kernels.ops.store_kv import StoreKVSpec, plan_store_kv


def supports(spec: FusedAttentionSpec, device: torch.device) -> str | None:
    """Returns None if some back end of `paged_attention` runs this spec here, else the reasons."""
    try:
        choose("paged_attention", spec.attention, device)
    except BackendUnavailable as error:
        return str(error)
    return None


def plan(
    spec: FusedAttentionSpec,
    device: torch.device | str,
    *,
    backend: str = "auto",
    attention_backend: str | None = None,
) -> FusedAttention:
    """Binds the parts, `paged_attention` by `attention_backend` if given, others by `backend`."""
    return Composed(spec, device, backend, attention_backend or backend)


class Composed:
    """The parts of fused_attention, one after another."""

    def __init__(
        self,
        spec: FusedAttentionSpec,
        device: torch.device | str,
        backend: str,
        attention_backend: str,
    ) -> None:
        """Plans the parts."""
        of = spec.attention
        heads: dict[str, Any] = {
            "num_kv_heads": of.num_kv_heads,
            "head_dim": of.head_dim,
            "dtype": of.dtype,
        }
        self._sizes = [of.num_heads, of.num_kv_heads, of.num_kv_heads]
        self._norm = None
        if spec.norm_eps is not None:
            norm = RMSNormSpec(hidden_size=of.head_dim, eps=spec.norm_eps, dtype=of.dtype)
            self._norm = plan_rms_norm(norm, device, backend)
        self._rope = plan_rope(RopeSpec(num_heads=of.num_heads, **heads), device, backend)
        store_kv = StoreKVSpec(block_size=of.block_size, **heads)
        self._store_kv = plan_store_kv(store_kv, device, backend)
        self._attend = plan_paged_attention(of, device, attention_backend)

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
        q, k, v = torch.split(qkv, self._sizes, dim=1)
        if self._norm is not None:
            assert norm_weights is not None, "norm_weights are missing"
            q, k = self._norm(q, norm_weights[0]), self._norm(k, norm_weights[1])
        q, k = self._rope(q, k, cos_sin, step.positions)
        self._store_kv(k, v, k_cache, v_cache, step.slot_mapping)
        return self._attend(q, k_cache, v_cache, step).view(len(qkv), -1)
