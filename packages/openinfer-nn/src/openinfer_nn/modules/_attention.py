"""Attention over the paged cache."""

import torch
from torch import nn

from openinfer_kernels import (
    PagedAttentionSpec,
    StoreKVSpec,
    plan_paged_attention,
    plan_store_kv,
)
from openinfer_nn._inputs import StepInputs


class PagedAttention(nn.Module):
    """Causal grouped-query attention over the paged cache; it has no weight.

    Attributes:
        spec: Heads, block size, scale and dtype of the attention.
        device: Where it runs.
        backend: The back end that was asked for, "auto" for the best one.
    """

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
        """Plans the ops.

        Args:
            num_heads: Query heads.
            num_kv_heads: Key and value heads.
            head_dim: Dimensions of a head.
            block_size: Tokens per cache block.
            scale: Factor of the scores.
            device: Where it runs.
            dtype: Dtype of queries, keys, values and cache.
            backend: Back end of `paged_attention`, and of `FusedAttention` over this module.
        """
        super().__init__()
        self.spec = PagedAttentionSpec(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            scale=scale,
            dtype=dtype,
        )
        self.device = device
        self.backend = backend
        store = StoreKVSpec(
            num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
        )
        self._store_kv = plan_store_kv(store, device)
        self._attend = plan_paged_attention(self.spec, device, backend)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        inputs: StepInputs,
        layer_cache: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        """Stores this step's keys and values, then attends to all tokens of each sequence.

        Args:
            q: [num_tokens, num_heads, head_dim].
            k: [num_tokens, num_kv_heads, head_dim].
            v: The same shape as `k`.
            inputs: The step.
            layer_cache: Keys and values of this layer, from `CacheView.layer`.

        Returns:
            [num_tokens, num_heads * head_dim].
        """
        k_cache, v_cache = layer_cache
        self._store_kv(k, v, k_cache, v_cache, inputs.slot_mapping)
        return self._attend(q, k_cache, v_cache, inputs).view(len(q), -1)
