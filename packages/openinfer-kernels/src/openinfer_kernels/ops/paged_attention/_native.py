"""paged_attention on the CPU in one native call, over the cache's blocks in place.

A decode row costs what reading its keys and values costs; prefills go through the keys block by
block. `seq_lens` and `block_table` are not checked against the cache.
"""

import torch

from openinfer_kernels.native import library, why_not, wrong_tensors
from openinfer_kernels.ops.paged_attention import (
    PagedAttention,
    PagedAttentionSpec,
    StepSequences,
)

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
    rows = (spec.num_heads, spec.head_dim)
    check_sequences = SequenceChecks("paged_attention", spec)

    def attend(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepSequences
    ) -> torch.Tensor:
        if q.dtype is not torch.bfloat16 or q.shape[1:] != rows or not q.is_cpu:
            wanted = f"q [num_tokens, {rows[0]}, {rows[1]}] in bf16"
            raise wrong_tensors("paged_attention", wanted, q=q)
        check_sequences(step, k_cache, v_cache)
        table, q = step.block_table, q.contiguous()
        out = torch.empty(q.shape, dtype=q.dtype)
        failed = native(
            out.data_ptr(),
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            k_cache.stride(0),
            step.cu_seqlens_q.data_ptr(),
            step.seq_lens.data_ptr(),
            table.data_ptr(),
            table.stride(0),
            table.size(0),
            *sizes,
            spec.scale,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the partial results of attention")
        return out

    return attend


class SequenceChecks:
    """Checks the caches and the sequences of a step before a native call reads their addresses.

    Args:
        op: Name of the op, for errors.
        spec: The attention.
    """

    def __init__(self, op: str, spec: PagedAttentionSpec) -> None:
        self._op = op
        self._block = (spec.block_size, spec.num_kv_heads, spec.head_dim)
        self._slot_strides = (spec.num_kv_heads * spec.head_dim, spec.head_dim, 1)

    def __call__(self, step: StepSequences, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
        """Raises ValueError if a tensor has another dtype, shape, layout or device than needed."""
        begins, lengths, table = step.cu_seqlens_q, step.seq_lens, step.block_table
        num_seqs, strides = lengths.numel(), k_cache.stride()
        if (
            k_cache.dtype is not torch.bfloat16
            or v_cache.dtype is not torch.bfloat16
            or begins.dtype is not torch.int32
            or lengths.dtype is not torch.int32
            or table.dtype is not torch.int32
            or k_cache.shape[1:] != self._block
            or strides[1:] != self._slot_strides
            or v_cache.shape != k_cache.shape
            or v_cache.stride() != strides
            or begins.numel() != num_seqs + 1
            or table.size(0) != num_seqs
            or table.stride(-1) != 1
            or not (begins.is_contiguous() and lengths.is_contiguous())
            or not (k_cache.is_cpu and v_cache.is_cpu and table.is_cpu)
            or not (begins.is_cpu and lengths.is_cpu)
        ):
            block = ", ".join(map(str, self._block))
            wanted = (
                f"caches [num_blocks, {block}] of the same strides in bf16, blocks contiguous, and "
                "cu_seqlens_q [num_seqs + 1], seq_lens [num_seqs] and block_table [num_seqs, "
                "max_blocks] in int32, rows contiguous"
            )
            given = {"k_cache": k_cache, "v_cache": v_cache, "cu_seqlens_q": begins}
            raise wrong_tensors(self._op, wanted, **given, seq_lens=lengths, block_table=table)
