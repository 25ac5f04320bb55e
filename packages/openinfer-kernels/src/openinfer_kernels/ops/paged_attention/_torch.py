"""paged_attention through torch on any device, with no host read and no data-dependent shape.

Sequences are padded to the step's longest, keys gathered through the block table, and one masked
attention runs over all. It wastes work on ragged batches: it stands where nothing better does.
"""

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.paged_attention import PagedAttention, PagedAttentionSpec


def supports(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    """Every spec on every device."""
    return None


def plan(spec: PagedAttentionSpec, device: torch.device | str) -> PagedAttention:
    """Binds paged_attention to a spec."""
    num_kv_heads, head_dim, block_size = spec.num_kv_heads, spec.head_dim, spec.block_size

    def gather(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        gathered = cache.index_select(0, blocks.flatten())  # [S * N, block_size, KVH, D]
        return gathered.view(blocks.shape[0], -1, num_kv_heads, head_dim).transpose(1, 2)

    def attend(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> torch.Tensor:
        blocks = block_table[:, : -(-max_seqlen_k // block_size)]
        k, v = gather(k_cache, blocks), gather(v_cache, blocks)  # [S, KVH, L, D]

        num_queries = cu_seqlens_q.diff().unsqueeze(1)  # [S, 1]
        column = torch.arange(max_seqlen_q, device=q.device)
        is_query = column < num_queries  # [S, Q]
        # Padding reads row 0 on its way in and is parked in a row of its own on its way out.
        row = torch.where(is_query, cu_seqlens_q[:-1].unsqueeze(1) + column, 0)
        queries = q[row].transpose(1, 2)  # [S, H, Q, D]

        position = seq_lens.unsqueeze(1) - num_queries + column  # [S, Q]
        key = torch.arange(k.shape[2], device=q.device)
        sees = key <= position.unsqueeze(2)  # [S, Q, L]
        # A slot past the end may hold anything, and 0 times NaN is no 0.
        is_past = (key >= seq_lens.unsqueeze(1))[:, None, :, None]  # [S, 1, L, 1]
        k, v = k.masked_fill(is_past, 0), v.masked_fill(is_past, 0)
        # A row that sees nothing would be 0 / 0: let it see key 0, then zero it.
        is_blind = ~(sees.any(dim=2) & is_query)
        sees[..., 0] |= is_blind
        attended = F.scaled_dot_product_attention(
            queries, k, v, attn_mask=sees.unsqueeze(1), scale=spec.scale, enable_gqa=True
        )
        attended = attended.transpose(1, 2).masked_fill(is_blind[..., None, None], 0)

        out = q.new_zeros(q.shape[0] + 1, q.shape[1], head_dim)
        row = torch.where(is_query, row, q.shape[0])
        out.index_put_((row,), attended)
        return out[:-1]

    return attend
