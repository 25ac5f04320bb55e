"""paged_attention on the CPU: sequence by sequence, over that sequence's own blocks.

The host may read host tensors, so the work is exactly what the lengths say and nothing is padded:
a decode step of a short sequence costs little however long the others are.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.paged_attention import PagedAttention, PagedAttentionSpec

# Queries attended at a time in a prefill: bounds the mask, and skips keys after the chunk.
_QUERY_CHUNK = 256
# Tokens a decode attends at a time: keys and values of a usual layer are then 2 MiB.
_STRETCH = 512


def supports(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    """Every spec on a CPU."""
    return None if device.type == "cpu" else f"needs a CPU, this is {device.type}"


def plan(spec: PagedAttentionSpec, device: torch.device | str) -> PagedAttention:
    """Binds paged_attention."""
    num_kv_heads, head_dim, block_size = spec.num_kv_heads, spec.head_dim, spec.block_size
    decode = _plan_decode(spec)

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
            if end - start == 1:
                out[start] = decode(q[start], k_cache, v_cache, blocks, seq_len)
            else:
                k, v = gather(k_cache, blocks, seq_len), gather(v_cache, blocks, seq_len)
                _prefill(q[start:end], k, v, out[start:end], spec.scale)
        return out

    return attend


def _plan_decode(spec: PagedAttentionSpec) -> Callable[..., torch.Tensor]:
    """One query over a sequence's blocks, a stretch at a time, so that the cost stays linear.

    Heads are far apart in a gathered stretch; beyond the cache each of them would read memory anew.
    """
    num_kv_heads, head_dim, block_size = spec.num_kv_heads, spec.head_dim, spec.block_size
    group_size = spec.num_heads // num_kv_heads
    blocks_per_stretch = max(1, _STRETCH // block_size)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def decode(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        blocks: torch.Tensor,
        seq_len: int,
    ) -> torch.Tensor:
        # One query sees every key, so the heads of a group are rows of one product.
        rows = q.view(1, num_kv_heads, group_size, head_dim)
        outs, sums = [], []
        for part in torch.split(blocks, blocks_per_stretch):
            length = min(seq_len, part.numel() * block_size)
            seq_len -= length
            k, v = (
                cache.index_select(0, part).view(-1, num_kv_heads, head_dim)[:length]
                for cache in (k_cache, v_cache)
            )
            out, log_sum = flash(
                rows,
                k.transpose(0, 1).unsqueeze(0),
                v.transpose(0, 1).unsqueeze(0),
                scale=spec.scale,
            )
            outs.append(out)
            sums.append(log_sum)
        if len(outs) == 1:
            return cast(torch.Tensor, outs[0].reshape(-1, head_dim))
        weights = torch.stack(sums).softmax(dim=0).unsqueeze(-1)  # [parts, 1, KVH, G, 1]
        merged = (torch.stack(outs).float() * weights).sum(dim=0)
        return merged.view(-1, head_dim).to(q.dtype)

    return decode


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
