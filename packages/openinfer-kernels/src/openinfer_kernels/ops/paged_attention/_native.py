"""paged_attention on the CPU in one native call, over the cache's blocks in place.

A decode row costs what reading its keys and values costs; prefills go through the keys block by
block. `seq_lens` and `block_table` are not checked against the cache.
"""

import torch

from openinfer_kernels.native import library, why_not, wrong_tensors
from openinfer_kernels.ops.paged_attention import PagedAttention, PagedAttentionSpec

_HEAD_DIMS = (32, 64, 128, 256)


def supports(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    """Returns None for bf16 heads that the native kernels support on this CPU, else the reason."""
    if spec.head_dim not in _HEAD_DIMS:
        return f"heads of {', '.join(map(str, _HEAD_DIMS))} dimensions, got {spec.head_dim}"
    return why_not(spec.dtype, device)


def plan(spec: PagedAttentionSpec, device: torch.device | str) -> PagedAttention:
    """Binds paged_attention to a spec."""
    native = library().paged_attention
    sizes = (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.block_size)
    rows, block = sizes[:1] + sizes[2:3], (spec.block_size, *sizes[1:3])
    slots = (spec.num_kv_heads * spec.head_dim, spec.head_dim, 1)
    wanted = (
        f"q [num_tokens, {rows[0]}, {rows[1]}] and caches [num_blocks, {block[0]}, {block[1]}, "
        f"{block[2]}] of the same strides, all in bf16, blocks contiguous, and cu_seqlens_q "
        "[num_seqs + 1], seq_lens [num_seqs] and block_table [num_seqs, max_blocks] in int32, "
        "rows contiguous"
    )

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
        num_seqs = seq_lens.numel()
        if (
            q.dtype is not torch.bfloat16
            or k_cache.dtype is not torch.bfloat16
            or v_cache.dtype is not torch.bfloat16
            or cu_seqlens_q.dtype is not torch.int32
            or seq_lens.dtype is not torch.int32
            or block_table.dtype is not torch.int32
            or q.shape[1:] != rows
            or k_cache.shape[1:] != block
            or v_cache.shape != k_cache.shape
            or k_cache.stride()[1:] != slots
            or v_cache.stride() != k_cache.stride()
            or cu_seqlens_q.numel() != num_seqs + 1
            or block_table.size(0) != num_seqs
            or block_table.stride(-1) != 1
            or not (cu_seqlens_q.is_contiguous() and seq_lens.is_contiguous())
            or not (q.is_cpu and k_cache.is_cpu and v_cache.is_cpu)
            or not (cu_seqlens_q.is_cpu and seq_lens.is_cpu and block_table.is_cpu)
        ):
            given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "cu_seqlens_q": cu_seqlens_q}
            given |= {"seq_lens": seq_lens, "block_table": block_table}
            raise wrong_tensors("paged_attention", wanted, **given)
        q = q.contiguous()
        out = torch.empty(q.shape, dtype=q.dtype)
        failed = native(
            out.data_ptr(),
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            k_cache.stride(0),
            cu_seqlens_q.data_ptr(),
            seq_lens.data_ptr(),
            block_table.data_ptr(),
            block_table.stride(0),
            num_seqs,
            *sizes,
            spec.scale,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the partial results of attention")
        return out

    return attend
