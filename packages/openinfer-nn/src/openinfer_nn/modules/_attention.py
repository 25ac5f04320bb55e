"""Attention over the paged cache, from a layer's projections to its heads' outputs."""

import torch
from torch import nn

from openinfer_kernels import FusedAttentionSpec, PagedAttentionSpec, plan_fused_attention
from openinfer_nn._inputs import StepInputs
from openinfer_nn.modules._norm import RMSNorm
from openinfer_nn.modules._rotary import RotaryEmbedding


class Attention(nn.Module):
    """Causal grouped-query attention; the projections around it are the model file's."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        scale: float,
        rotary: RotaryEmbedding,
        head_norms: tuple[RMSNorm, RMSNorm] | None,
        device: torch.device | str,
        dtype: torch.dtype,
        backend: str = "auto",
    ) -> None:
        """Plans the op. There is no weight: the norms are another module's.

        Args:
            num_heads: Query heads.
            num_kv_heads: Key and value heads.
            head_dim: Dimensions of a head.
            block_size: Tokens a cache block holds.
            scale: Multiplies the scores.
            rotary: The angles by which queries and keys are rotated.
            head_norms: What normalises query and key heads before the rotation, if anything does.
            device: Where it runs.
            dtype: Of projections and cache.
            backend: Of `fused_attention`, or of `paged_attention` among the ops it is made of.
        """
        super().__init__()
        attention = PagedAttentionSpec(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            scale=scale,
            dtype=dtype,
        )
        eps = None if head_norms is None else head_norms[0].eps
        spec = FusedAttentionSpec(attention=attention, norm_eps=eps)
        self._attend = plan_fused_attention(spec, device, backend)
        self.rotary = rotary
        # In a tuple: they are no parts of this module.
        self._head_norms = head_norms

    def forward(
        self,
        qkv: torch.Tensor,
        inputs: StepInputs,
        layer_cache: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        """Attends this step's queries to everything cached for their sequences, this step included.

        Args:
            qkv: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], from `QKVLinear.project`; it
                is consumed.
            inputs: The step.
            layer_cache: Keys and values of this layer, from `CacheView.layer`; this step's are
                written there.

        Returns:
            [num_tokens, num_heads * head_dim].
        """
        norms = self._head_norms
        weights = None if norms is None else (norms[0].weight, norms[1].weight)
        return self._attend(qkv, weights, self.rotary.cos_sin, inputs, *layer_cache)
