"""The definition of paged_attention: token by token and head by head, in float32."""

import torch

from openinfer_kernels.ops.paged_attention import (
    PagedAttention,
    PagedAttentionSpec,
    StepSequences,
)


def plan(spec: PagedAttentionSpec, device: torch.device | str) -> PagedAttention:
    """Binds paged_attention to a spec."""
    group_size = spec.num_heads // spec.num_kv_heads

    def attend(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepSequences
    ) -> torch.Tensor:
        out = torch.zeros(q.shape, dtype=spec.dtype, device=q.device)
        starts = step.cu_seqlens_q.tolist()
        for seq, seq_len in enumerate(step.seq_lens.tolist()):
            num_queries = starts[seq + 1] - starts[seq]
            for i in range(num_queries if seq_len else 0):
                visible = seq_len - num_queries + i + 1
                tokens = torch.arange(visible, device=q.device)
                blocks = step.block_table[seq, tokens // spec.block_size].long()
                keys = k_cache[blocks, tokens % spec.block_size].float()  # [L, KVH, D]
                values = v_cache[blocks, tokens % spec.block_size].float()
                for head in range(spec.num_heads):
                    kv_head = head // group_size
                    query = q[starts[seq] + i, head].float()
                    weights = torch.softmax(keys[:, kv_head] @ query * spec.scale, dim=0)
                    out[starts[seq] + i, head] = (weights @ values[:, kv_head]).to(spec.dtype)
        return out

    return attend
