"""paged_attention on the CPU with torch's operators: sequence by sequence.

The host reads the lengths, so nothing is padded: a decode row of a short sequence costs little
however long the other sequences are.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F

from openinfer_kernels.ops.paged_attention import (
    PagedAttention,
    PagedAttentionSpec,
    StepSequences,
)

# Queries of a prefill computed at a time: bounds the mask, and skips the keys after the chunk.
_QUERY_CHUNK = 256
# Keys that a decode row attends to at a time: with 8 key heads of 128 dimensions in bf16 their
# keys and values are 2 MiB.
_CHUNK_KEYS = 512


def supports(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    """Returns None on a CPU, else the reason."""
    return None if device.type == "cpu" else f"needs a CPU, this is {device.type}"


def plan(spec: PagedAttentionSpec, device: torch.device | str) -> PagedAttention:
    """Binds paged_attention to a spec."""
    num_kv_heads, head_dim, block_size = spec.num_kv_heads, spec.head_dim, spec.block_size
    decode = _plan_decode(spec)

    def gather(cache: torch.Tensor, blocks: torch.Tensor, seq_len: int) -> torch.Tensor:
        tokens = cache.index_select(0, blocks).view(-1, num_kv_heads, head_dim)
        return tokens[:seq_len].transpose(0, 1).unsqueeze(0)  # [1, KVH, L, D]

    def attend(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepSequences
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        starts = step.cu_seqlens_q.tolist()
        for seq, seq_len in enumerate(step.seq_lens.tolist()):
            start, end = starts[seq], starts[seq + 1]
            if seq_len == 0:
                out[start:end] = 0
                continue
            blocks = step.block_table[seq, : -(-seq_len // block_size)]
            if end - start == 1:
                out[start] = decode(q[start], k_cache, v_cache, blocks, seq_len)
            else:
                k, v = gather(k_cache, blocks, seq_len), gather(v_cache, blocks, seq_len)
                _prefill(q[start:end], k, v, out[start:end], spec.scale)
        return out

    return attend


def _plan_decode(spec: PagedAttentionSpec) -> Callable[..., torch.Tensor]:
    """Returns a function that attends with one query to a sequence's blocks, chunk by chunk.

    The heads of gathered keys are far apart. A chunk stays in the CPU's cache, so each head reads
    it from there and not from memory, and the cost grows linearly with the length.
    """
    num_kv_heads, head_dim, block_size = spec.num_kv_heads, spec.head_dim, spec.block_size
    group_size = spec.num_heads // num_kv_heads
    blocks_per_chunk = max(1, _CHUNK_KEYS // block_size)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def decode(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        blocks: torch.Tensor,
        seq_len: int,
    ) -> torch.Tensor:
        # One query attends to every key, so the heads of a group are rows of one product.
        rows = q.view(1, num_kv_heads, group_size, head_dim)
        outs, sums = [], []
        for part in torch.split(blocks, blocks_per_chunk):
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
    """Attends with the last queries of one sequence: q, out [Tq, H, D]; k, v [1, KVH, L, D]."""
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
