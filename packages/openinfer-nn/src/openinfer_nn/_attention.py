"""Attention over the paged cache: write this step's keys and values, then attend."""

import torch
from torch import nn

from openinfer_kernels import (
    PagedAttentionSpec,
    StoreKVSpec,
    plan_paged_attention,
    plan_store_kv,
)
from openinfer_nn._inputs import StepInputs


class Attention(nn.Module):
    """Causal grouped-query attention; projections, norms and rotation are the model file's."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        scale: float,
        device: torch.device | str,
        dtype: torch.dtype,
        backend: str = "auto",
    ) -> None:
        """Plans both ops; `backend` is that of `paged_attention`. There is no weight."""
        super().__init__()
        store_spec = StoreKVSpec(
            num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
        )
        attention_spec = PagedAttentionSpec(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            scale=scale,
            dtype=dtype,
        )
        self._store_kv = plan_store_kv(store_spec, device)
        self._attend = plan_paged_attention(attention_spec, device, backend)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        inputs: StepInputs,
        layer_cache: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        """Attends this step's queries to everything cached for their sequences.

        Args:
            q: [num_tokens, num_heads, head_dim].
            k: [num_tokens, num_kv_heads, head_dim].
            v: Same shape as k.
            inputs: The step.
            layer_cache: Keys and values of this layer, from `CacheView.layer`.

        Returns:
            [num_tokens, num_heads * head_dim].
        """
        k_cache, v_cache = layer_cache
        self._store_kv(k, v, k_cache, v_cache, inputs.slot_mapping)
        out = self._attend(
            q,
            k_cache,
            v_cache,
            inputs.cu_seqlens_q,
            inputs.seq_lens,
            inputs.block_table,
            inputs.max_seqlen_q,
            inputs.max_seqlen_k,
        )
        return out.view(q.shape[0], -1)
