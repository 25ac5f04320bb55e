"""paged_attention in Triton: a decode kernel that splits long sequences, and prefill kernels.

Decode (flash-decoding): program (sequence, key head, split) attends the group's query heads to its
share of the keys, and a second kernel merges the splits. The shares follow from seq_lens on the
device; the host decides only how many splits there are. Prefill: see `_triton_prefill`. All keep
scores, maxima and sums in float32 (Dao, 2023).
"""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from typing import Any

import torch
import triton
import triton.language as tl

from openinfer_kernels.gpu._support import TRITON_DTYPES, CompileCase, why_not_triton
from openinfer_kernels.ops.paged_attention import PagedAttention, PagedAttentionSpec
from openinfer_kernels.ops.paged_attention._triton_prefill import compile_cases as prefill_cases
from openinfer_kernels.ops.paged_attention._triton_prefill import plan_prefill
from openinfer_kernels.ops.paged_attention._triton_prefill_kernels import attend_tile, load_tile
from openinfer_kernels.ops.paged_attention._tuning import (
    MAX_SPLITS,
    constexprs,
    decode_rows,
    num_splits,
)


def supports(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    """Heads of 32, 64, 128 or 256 dimensions."""
    if spec.head_dim not in (32, 64, 128, 256):
        return f"head_dim must be 32, 64, 128 or 256, got {spec.head_dim}"
    return why_not_triton(spec.dtype, device)


@triton.jit
def _decode_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    cu_seqlens_q_ptr,
    seq_lens_ptr,
    block_table_ptr,
    acc_ptr,
    lse_ptr,
    q_stride,
    block_stride,
    table_stride,
    num_splits,
    scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    LAYOUT: tl.constexpr = (BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens_ptr + seq)
    token = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    is_row = rows < GROUP
    heads = kv_head * GROUP + rows
    # A padding sequence at the end owns no row: its token lies past the queries.
    q = tl.load(
        q_ptr + token * q_stride + heads[:, None] * HEAD_DIM + dims[None, :],
        mask=is_row[:, None] & (seq_len > 0),
        other=0.0,
    )
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)

    tiles_per_split = tl.cdiv(tl.cdiv(seq_len, TILE), num_splits)
    first = split * tiles_per_split * TILE
    last = tl.minimum(first + tiles_per_split * TILE, seq_len)
    table = block_table_ptr + seq * table_stride
    for start in range(first, last, TILE):
        keys = start + tl.arange(0, TILE)
        is_key = keys < last
        k = load_tile(k_cache_ptr, table, keys, is_key, block_stride, kv_head, dims, LAYOUT, True)
        v = load_tile(v_cache_ptr, table, keys, is_key, block_stride, kv_head, dims, LAYOUT, True)
        maximum, total, acc = attend_tile(
            q, k, v, is_key[None, :], maximum, total, acc, scale, True, PRECISION
        )

    out_row = (seq * NUM_HEADS + heads) * num_splits + split
    denominator = tl.where(total > 0.0, total, 1.0)
    lse = tl.where(total > 0.0, maximum + tl.log2(denominator), float("-inf"))
    tl.store(lse_ptr + out_row, lse, mask=is_row)
    tl.store(
        acc_ptr + out_row[:, None] * HEAD_DIM + dims[None, :],
        acc / denominator[:, None],
        mask=is_row[:, None],
    )


@triton.jit
def _merge_kernel(
    acc_ptr,
    lse_ptr,
    cu_seqlens_q_ptr,
    out_ptr,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    splits = tl.arange(0, MAX_SPLITS)
    dims = tl.arange(0, HEAD_DIM)
    is_split = splits < num_splits
    row = (seq * NUM_HEADS + head) * num_splits
    lse = tl.load(lse_ptr + row + splits, mask=is_split, other=float("-inf"))
    top = tl.max(lse, axis=0)
    weights = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weights, axis=0)
    acc = tl.load(
        acc_ptr + (row + splits)[:, None] * HEAD_DIM + dims[None, :],
        mask=is_split[:, None],
        other=0.0,
    )
    out = tl.sum(acc * weights[:, None], axis=0) / tl.where(total > 0.0, total, 1.0)
    token = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    target = out_ptr + (token * NUM_HEADS + head) * HEAD_DIM
    # A padding sequence owns no row, and must not write over the next one's.
    owns_row = tl.load(cu_seqlens_q_ptr + seq + 1) > token
    tl.store(target + dims, out.to(out_ptr.dtype.element_ty), mask=(dims < HEAD_DIM) & owns_row)


def plan(spec: PagedAttentionSpec, device: torch.device | str) -> PagedAttention:
    """Binds paged_attention."""
    num_heads, head_dim, scale = spec.num_heads, spec.head_dim, spec.scale
    decode_kernel: Any = _decode_kernel
    merge_kernel: Any = _merge_kernel
    decode_constexprs = constexprs(spec, decode_rows(spec))
    prefill = plan_prefill(spec, torch.device(device))

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
        num_seqs = seq_lens.shape[0]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if num_seqs == 0 or q.shape[0] == 0:
            return out
        cache = (k_cache, v_cache, cu_seqlens_q, seq_lens, block_table)
        if max_seqlen_q > 1:
            prefill(q, cache, out, max_seqlen_q, max_seqlen_k)
            return out
        splits = num_splits(num_seqs * spec.num_kv_heads, max_seqlen_k)
        acc = torch.empty(
            (num_seqs, num_heads, splits, head_dim), dtype=torch.float32, device=q.device
        )
        lse = torch.empty((num_seqs, num_heads, splits), dtype=torch.float32, device=q.device)
        decode_kernel[(num_seqs, spec.num_kv_heads, splits)](
            q,
            *cache,
            acc,
            lse,
            q.stride(0),
            k_cache.stride(0),
            block_table.stride(0),
            splits,
            scale,
            **decode_constexprs,
            num_warps=4,
            num_stages=2,
        )
        merge_kernel[(num_seqs, num_heads)](
            acc,
            lse,
            cu_seqlens_q,
            out,
            splits,
            NUM_HEADS=num_heads,
            HEAD_DIM=head_dim,
            MAX_SPLITS=MAX_SPLITS,
            num_warps=1,
        )
        return out

    return attend


# Qwen3's heads, an odd group of few dimensions, the widest heads; what differs by dtype is covered
# by the shapes where it bites (shared memory with wide numbers).
_COMPILED_HEADS = {
    torch.bfloat16: ((32, 8, 128), (7, 1, 64), (16, 4, 256)),
    torch.float16: ((32, 8, 128),),
    torch.float32: ((7, 1, 64), (16, 4, 256)),
}


def compile_cases() -> list[CompileCase]:
    """All kernels over the heads above."""
    cases = []
    for dtype, shapes in _COMPILED_HEADS.items():
        for num_heads, num_kv_heads, head_dim in shapes:
            spec = PagedAttentionSpec(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                block_size=16,
                scale=head_dim**-0.5,
                dtype=dtype,
            )
            shape = f"{TRITON_DTYPES[dtype]}-{num_heads}x{num_kv_heads}x{head_dim}"
            cases += [*_decode_cases(spec, shape), *prefill_cases(spec, shape)]
    return cases


def _decode_cases(spec: PagedAttentionSpec, shape: str) -> list[CompileCase]:
    pointer = f"*{TRITON_DTYPES[spec.dtype]}"
    inputs = {"q_ptr": pointer, "k_cache_ptr": pointer, "v_cache_ptr": pointer}
    inputs |= {"cu_seqlens_q_ptr": "*i32", "seq_lens_ptr": "*i32", "block_table_ptr": "*i32"}
    strides = {"q_stride": "i64", "block_stride": "i64", "table_stride": "i64"}
    partials = {"acc_ptr": "*fp32", "lse_ptr": "*fp32"}
    merge_inputs = {"cu_seqlens_q_ptr": "*i32", "out_ptr": pointer, "num_splits": "i32"}
    return [
        CompileCase(
            name=f"paged_attention.decode-{shape}",
            kernel=_decode_kernel,
            signature={**inputs, **partials, **strides, "num_splits": "i32", "scale": "fp32"},
            constexprs=constexprs(spec, decode_rows(spec)),
            num_stages=2,
        ),
        CompileCase(
            name=f"paged_attention.merge-{shape}",
            kernel=_merge_kernel,
            signature={**partials, **merge_inputs},
            constexprs={
                "NUM_HEADS": spec.num_heads,
                "HEAD_DIM": spec.head_dim,
                "MAX_SPLITS": MAX_SPLITS,
            },
            num_warps=1,
        ),
    ]
