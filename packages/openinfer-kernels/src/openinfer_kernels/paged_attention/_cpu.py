"""paged_attention on the CPU: sequence by sequence, over that sequence's own blocks.

The host may read host tensors, so the work is exactly what the lengths say and nothing is padded:
a decode step of a short sequence costs little however long the others are.
"""

import torch
import torch.nn.functional as F

from openinfer_kernels.paged_attention import PagedAttention, PagedAttentionSpec

# Queries attended at a time in a prefill: bounds the mask, and skips keys after the chunk.
_QUERY_CHUNK = 256


def supports(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    """Every spec on a CPU."""
    return None if device.type == "cpu" else f"needs a CPU, this is {device.type}"


def plan(spec: PagedAttentionSpec, device: torch.device | str) -> PagedAttention:
    """Binds paged_attention."""
    num_kv_heads, head_dim, block_size = spec.num_kv_heads, spec.head_dim, spec.block_size
    group_size = spec.num_heads // num_kv_heads
    scale = spec.scale

    def gather(cache: torch.Tensor, blocks: torch.Tensor, seq_len: int) -> torch.Tensor:
        tokens = cache.index_select(0, blocks).view(-1, num_kv_heads, head_dim)
        return tokens[:seq_len].transpose(0, 1).unsqueeze(0)  # [1, KVH, L, D]

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
        out = torch.empty(q.shape, dtype=q.dtype)
        starts = cu_seqlens_q.tolist()
        for seq, seq_len in enumerate(seq_lens.tolist()):
            start, end = starts[seq], starts[seq + 1]
            if seq_len == 0:
                out[start:end] = 0
                continue
            blocks = block_table[seq, : -(-seq_len // block_size)]
            k, v = gather(k_cache, blocks, seq_len), gather(v_cache, blocks, seq_len)
            if end - start == 1:
                # One query sees every key, so the heads of a group are rows of one product.
                rows = q[start].view(1, num_kv_heads, group_size, head_dim)
                rows = F.scaled_dot_product_attention(rows, k, v, scale=scale)
                out[start] = rows.view(-1, head_dim)
            else:
                _prefill(q[start:end], k, v, out[start:end], scale)
        return out

    return attend


def _prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, scale: float
) -> None:
    """Attends the last rows of one sequence: q, out [Tq, H, D]; k, v [1, KVH, L, D]."""
    num_queries, seq_len = q.shape[0], k.shape[2]
    prefix = seq_len - num_queries
    for begin in range(0, num_queries, _QUERY_CHUNK):
        end = min(begin + _QUERY_CHUNK, num_queries)
        visible = prefix + end
        mask = None
        if prefix + begin:
            mask = torch.ones(end - begin, visible, dtype=torch.bool).tril_(prefix + begin)
        rows = F.scaled_dot_product_attention(
            q[begin:end].transpose(0, 1).unsqueeze(0),
            k[:, :, :visible],
            v[:, :, :visible],
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=True,
        )
        out[begin:end] = rows[0].transpose(0, 1)
