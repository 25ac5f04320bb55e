"""paged_attention with torch's operators, on any device, without reading values on the host.

Sequences are padded to the longest one, keys are gathered through the block table, and one masked
attention runs over all of them. It gathers the whole cache of every sequence, so it is for tests
and small caches.
"""

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.paged_attention import (
    PagedAttention,
    PagedAttentionSpec,
    StepSequences,
)


def plan(spec: PagedAttentionSpec, device: torch.device | str) -> PagedAttention:
    """Binds paged_attention to a spec."""
    num_kv_heads, head_dim, block_size = spec.num_kv_heads, spec.head_dim, spec.block_size

    def gather(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        gathered = cache.index_select(0, blocks.flatten())  # [S * N, block_size, KVH, D]
        return gathered.view(blocks.shape[0], -1, num_kv_heads, head_dim).transpose(1, 2)

    def attend(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepSequences
    ) -> torch.Tensor:
        cu_seqlens_q, seq_lens = step.cu_seqlens_q, step.seq_lens
        blocks = step.block_table[:, : -(-step.max_seqlen_k // block_size)]
        k, v = gather(k_cache, blocks), gather(v_cache, blocks)  # [S, KVH, L, D]

        num_queries = cu_seqlens_q.diff().unsqueeze(1)  # [S, 1]
        column = torch.arange(step.max_seqlen_q, device=q.device)
        is_query = column < num_queries  # [S, Q]
        # Padding reads row 0, and writes to an extra row that is cut off at the end.
        row = torch.where(is_query, cu_seqlens_q[:-1].unsqueeze(1) + column, 0)
        queries = q[row].transpose(1, 2)  # [S, H, Q, D]

        position = seq_lens.unsqueeze(1) - num_queries + column  # [S, Q]
        key = torch.arange(k.shape[2], device=q.device)
        is_visible = key <= position.unsqueeze(2)  # [S, Q, L]
        # A slot after the last token may hold NaN, and 0 * NaN is NaN.
        is_past = (key >= seq_lens.unsqueeze(1))[:, None, :, None]  # [S, 1, L, 1]
        k, v = k.masked_fill(is_past, 0), v.masked_fill(is_past, 0)
        # A row without keys would be 0 / 0. It attends to key 0 instead and is set to 0 afterwards.
        has_no_key = ~(is_visible.any(dim=2) & is_query)
        is_visible[..., 0] |= has_no_key
        attended = F.scaled_dot_product_attention(
            queries, k, v, attn_mask=is_visible.unsqueeze(1), scale=spec.scale, enable_gqa=True
        )
        attended = attended.transpose(1, 2).masked_fill(has_no_key[..., None, None], 0)

        out = q.new_zeros(q.shape[0] + 1, q.shape[1], head_dim)
        row = torch.where(is_query, row, q.shape[0])
        out.index_put_((row,), attended)
        return out[:-1]

    return attend
