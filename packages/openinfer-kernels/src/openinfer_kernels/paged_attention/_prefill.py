"""How steps in which a sequence has more than one query are launched.

On a Hopper GPU by the kernel of `_gluon_prefill` where tokens fill its tiles, else by that of
`_triton_prefill`, whose tiles are smaller and which splits keys among programs where tiles are few.
What decides is known when a step is recorded: tokens and sequences, no lengths.
"""

from typing import Any, Protocol

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from openinfer_kernels._triton_support import TRITON_DTYPES, CompileCase, why_not_hopper
from openinfer_kernels.paged_attention import PagedAttentionSpec, _gluon_prefill
from openinfer_kernels.paged_attention._triton_prefill import merge_splits_kernel, prefill_kernel
from openinfer_kernels.paged_attention._triton_sizes import (
    MAX_SPLITS,
    constexprs,
    num_splits,
    prefill_rows,
)

# Programs of `_gluon_prefill` from which on it is faster, though an H200 would run 132 at a time.
_MIN_GLUON_PROGRAMS = 64


class Prefill(Protocol):
    """A bound launch."""

    def __call__(
        self,
        q: torch.Tensor,
        cache: tuple[torch.Tensor, ...],
        out: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        /,
    ) -> None:
        """Attends, into `out`; `cache` is all that `PagedAttention` takes after `q`, in order."""


def why_not_gluon(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    """Returns None if the kernel for Hopper runs this spec on this device, else the reason."""
    reason = why_not_hopper(device)
    if reason is not None:
        return reason
    if spec.head_dim != _gluon_prefill.HEAD_DIM or spec.dtype.itemsize != 2:
        return f"heads must have {_gluon_prefill.HEAD_DIM} dimensions of 16 bits"
    if spec.num_heads // spec.num_kv_heads not in (1, 2, 4, 8, 16):
        return "a group must have 1, 2, 4, 8 or 16 heads"
    if spec.block_size not in (16, 32, 64, 128):
        return f"blocks must hold 16, 32, 64 or 128 tokens, got {spec.block_size}"
    return None


def plan_prefill(spec: PagedAttentionSpec, device: torch.device) -> Prefill:
    """Binds what suits the device."""
    anywhere = TritonPrefill(spec)
    return anywhere if why_not_gluon(spec, device) else _ByNumber(spec, anywhere)


class _ByNumber:
    """The kernel for Hopper where it is worth it."""

    def __init__(self, spec: PagedAttentionSpec, anywhere: Prefill) -> None:
        self._few, self._many = anywhere, GluonPrefill(spec)

    def __call__(
        self,
        q: torch.Tensor,
        cache: tuple[torch.Tensor, ...],
        out: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        /,
    ) -> None:
        is_many = self._many.is_worth_it(q.shape[0], cache[3].shape[0])
        (self._many if is_many else self._few)(q, cache, out, max_seqlen_q, max_seqlen_k)


class GluonPrefill:
    """The launch of `_gluon_prefill`. It takes no memory but the output."""

    def __init__(self, spec: PagedAttentionSpec) -> None:
        """Binds it."""
        self._spec = spec
        self._queries = _gluon_prefill.ROWS * spec.num_kv_heads // spec.num_heads
        self._constexprs = {
            "NUM_HEADS": spec.num_heads,
            "NUM_KV_HEADS": spec.num_kv_heads,
            "BLOCK_SIZE": spec.block_size,
        }

    def is_worth_it(self, num_tokens: int, num_seqs: int) -> bool:
        """Whether so many tokens fill tiles enough, and a tile for each sequence.

        A sequence of one token takes a program longer here than the other kernel's, and so does
        padding that has none: a multiprocessor runs one program at a time.
        """
        num_tiles = num_tokens // self._queries
        enough = num_tiles * self._spec.num_kv_heads >= _MIN_GLUON_PROGRAMS
        return enough and num_tiles >= num_seqs

    def __call__(
        self,
        q: torch.Tensor,
        cache: tuple[torch.Tensor, ...],
        out: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        /,
    ) -> None:
        """Attends."""
        k_cache, v_cache, cu_seqlens_q, seq_lens, block_table = cache
        num_seqs = seq_lens.shape[0]
        num_tiles = q.shape[0] // self._queries + num_seqs
        kernel: Any = _gluon_prefill.prefill_kernel
        kernel[(self._spec.num_kv_heads, num_tiles)](
            q,
            _blocks_of(k_cache),
            _blocks_of(v_cache),
            cu_seqlens_q,
            seq_lens,
            block_table,
            out,
            q.stride(0),
            block_table.stride(0),
            num_seqs,
            self._spec.scale,
            **self._constexprs,
            num_warps=4,
        )


def _blocks_of(cache: torch.Tensor) -> TensorDescriptor:
    """Half a head of a block, as one copy moves it; the descriptor's offsets are 64 bits wide."""
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    width = num_kv_heads * head_dim
    return TensorDescriptor(
        cache,
        [num_blocks, block_size, width],
        [cache.stride(0), width, 1],
        [1, block_size, _gluon_prefill.BLOCK_COLUMNS],
        _gluon_prefill.BLOCK_LAYOUT,
    )


class TritonPrefill:
    """The launches of `_triton_prefill`."""

    def __init__(self, spec: PagedAttentionSpec) -> None:
        """Binds them."""
        self._spec = spec

    def __call__(
        self,
        q: torch.Tensor,
        cache: tuple[torch.Tensor, ...],
        out: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        /,
    ) -> None:
        """Attends; where keys are split, what the splits found takes memory."""
        spec, num_tokens = self._spec, q.shape[0]
        num_heads, num_kv_heads = spec.num_heads, spec.num_kv_heads
        k_cache, _, cu_seqlens_q, seq_lens, block_table = cache
        num_seqs = seq_lens.shape[0]
        rows = prefill_rows(spec, max_seqlen_q)
        num_tiles = num_tokens // (rows // (num_heads // num_kv_heads)) + num_seqs
        splits = num_splits(num_tiles * num_kv_heads, max_seqlen_k)
        acc = lse = out  # not written
        if splits > 1:
            size = (num_tokens, num_heads, splits, spec.head_dim)
            acc = torch.empty(size, dtype=torch.float32, device=q.device)
            lse = torch.empty(size[:3], dtype=torch.float32, device=q.device)
        kernel: Any = prefill_kernel
        kernel[(num_tiles, num_kv_heads, splits)](
            q,
            *cache,
            out,
            acc,
            lse,
            q.stride(0),
            k_cache.stride(0),
            block_table.stride(0),
            num_seqs,
            splits,
            spec.scale,
            **constexprs(spec, rows),
            IS_SPLIT=splits > 1,
            num_warps=4,
            num_stages=2,
        )
        if splits > 1:
            merge: Any = merge_splits_kernel
            merge[(num_tokens, num_heads)](
                acc,
                lse,
                cu_seqlens_q,
                out,
                num_seqs,
                splits,
                NUM_HEADS=num_heads,
                HEAD_DIM=spec.head_dim,
                MAX_SPLITS=MAX_SPLITS,
                num_warps=1,
            )


def compile_cases(spec: PagedAttentionSpec, shape: str) -> list[CompileCase]:
    """The prefill kernels of a spec, and the merge; `shape` ends their names."""
    pointer = f"*{TRITON_DTYPES[spec.dtype]}"
    cases = [_triton_case(spec, shape, is_split) for is_split in (False, True)]
    cases.append(
        CompileCase(
            name=f"paged_attention.merge-splits-{shape}",
            kernel=merge_splits_kernel,
            signature={
                "acc_ptr": "*fp32",
                "lse_ptr": "*fp32",
                "cu_seqlens_q_ptr": "*i32",
                "out_ptr": pointer,
                "num_seqs": "i32",
                "num_splits": "i32",
            },
            constexprs={
                "NUM_HEADS": spec.num_heads,
                "HEAD_DIM": spec.head_dim,
                "MAX_SPLITS": MAX_SPLITS,
            },
            num_warps=1,
        )
    )
    if spec.head_dim == _gluon_prefill.HEAD_DIM and spec.dtype.itemsize == 2:
        cases.append(_gluon_case(spec, shape))
    return cases


def _inputs(dtype: str) -> dict[str, str]:
    integers = ("cu_seqlens_q", "seq_lens", "block_table")
    inputs = {"q_ptr": f"*{dtype}", "out_ptr": f"*{dtype}", "q_stride": "i64"}
    inputs |= {f"{name}_ptr": "*i32" for name in integers}
    return inputs | {"table_stride": "i64", "num_seqs": "i32", "scale": "fp32"}


def _triton_case(spec: PagedAttentionSpec, shape: str, is_split: bool) -> CompileCase:
    dtype = TRITON_DTYPES[spec.dtype]
    rows = prefill_rows(spec, 16 if is_split else 1024)
    caches = {"k_cache_ptr": f"*{dtype}", "v_cache_ptr": f"*{dtype}", "block_stride": "i64"}
    partials = {"acc_ptr": "*fp32", "lse_ptr": "*fp32", "num_splits": "i32"}
    return CompileCase(
        name=f"paged_attention.{'extend' if is_split else 'prefill'}-{shape}",
        kernel=prefill_kernel,
        signature={**_inputs(dtype), **caches, **partials},
        constexprs={**constexprs(spec, rows), "IS_SPLIT": is_split},
        num_warps=4,
        num_stages=2,
    )


def _gluon_case(spec: PagedAttentionSpec, shape: str) -> CompileCase:
    dtype = TRITON_DTYPES[spec.dtype]
    block = f"{dtype}[1, {spec.block_size}, {_gluon_prefill.BLOCK_COLUMNS}]"
    cache = f"tensordesc<{block},{_gluon_prefill.BLOCK_LAYOUT!r}>"
    return CompileCase(
        name=f"paged_attention.prefill-hopper-{shape}",
        kernel=_gluon_prefill.prefill_kernel,
        signature={**_inputs(dtype), "k_cache": cache, "v_cache": cache},
        constexprs={
            "NUM_HEADS": spec.num_heads,
            "NUM_KV_HEADS": spec.num_kv_heads,
            "BLOCK_SIZE": spec.block_size,
        },
        archs=(90,),
    )
