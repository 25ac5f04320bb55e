"""Launches of the portable attention kernel (`_triton_prefill_kernels`), for steps of any kind."""

from typing import Any

import torch

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._family import tuned_for
from openinfer_kernels.gpu._support import TRITON_DTYPES, launches_dependents
from openinfer_kernels.ops.paged_attention import PagedAttentionSpec
from openinfer_kernels.ops.paged_attention._triton_prefill_kernels import (
    merge_splits_kernel,
    prefill_kernel,
)
from openinfer_kernels.ops.paged_attention._tuning import (
    TRITON_PREFILL,
    num_splits,
    prefill_block_m,
    prefill_constexprs,
    prefill_signature,
)


class TritonPrefillLauncher:
    """Launches `prefill_kernel`, and `merge_splits_kernel` where keys are split."""

    def __init__(self, spec: PagedAttentionSpec, device: torch.device) -> None:
        """Looks up the sizes for this device."""
        self._spec = spec
        self._sizes = tuned_for(TRITON_PREFILL, device)
        has_pdl = launches_dependents(device)
        self._launch = {"PDL": has_pdl, **({"launch_pdl": True} if has_pdl else {})}

    def __call__(
        self,
        q: torch.Tensor,
        cache: tuple[torch.Tensor, ...],
        out: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        /,
    ) -> None:
        """Attends into `out`. Allocates the results of the splits where keys are split.

        Args:
            q: As in `PagedAttention`.
            cache: `k_cache`, `v_cache`, `cu_seqlens_q`, `seq_lens` and `block_table`.
            out: [num_tokens, num_heads, head_dim], contiguous.
            max_seqlen_q: As in `StepSequences`.
            max_seqlen_k: As in `StepSequences`.
        """
        spec, sizes, num_tokens = self._spec, self._sizes, q.shape[0]
        num_heads, num_kv_heads = spec.num_heads, spec.num_kv_heads
        k_cache, _, cu_seqlens_q, seq_lens, block_table = cache
        num_seqs = seq_lens.shape[0]
        block_m = prefill_block_m(spec, sizes, max_seqlen_q)
        # The most tiles that any lengths of this many sequences can need.
        num_tiles = num_tokens // (block_m // (num_heads // num_kv_heads)) + num_seqs
        splits = num_splits(sizes, num_tiles * num_kv_heads, max_seqlen_k)
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
            **prefill_constexprs(spec, sizes, block_m),
            IS_SPLIT=splits > 1,
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
            **self._launch,
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
                MAX_SPLITS=sizes.max_splits,
                num_warps=1,
                **self._launch,
            )


def compile_cases(spec: PagedAttentionSpec, shape: str) -> list[CompileCase]:
    """Returns the kernels of a spec: whole keys, split keys and the merge. Names end in `shape`."""
    cases = [_prefill_case(spec, shape, is_split) for is_split in (False, True)]
    merge = CompileCase(
        name=f"paged_attention.merge-splits-{shape}",
        kernel=merge_splits_kernel,
        signature={
            "acc_ptr": "*fp32",
            "lse_ptr": "*fp32",
            "cu_seqlens_q_ptr": "*i32",
            "out_ptr": f"*{TRITON_DTYPES[spec.dtype]}",
            "num_seqs": "i32",
            "num_splits": "i32",
        },
        constexprs={
            "NUM_HEADS": spec.num_heads,
            "HEAD_DIM": spec.head_dim,
            "MAX_SPLITS": TRITON_PREFILL["default"].max_splits,
        },
        num_warps=1,
        has_pdl=True,
    )
    return [*cases, merge]


def _prefill_case(spec: PagedAttentionSpec, shape: str, is_split: bool) -> CompileCase:
    dtype, sizes = TRITON_DTYPES[spec.dtype], TRITON_PREFILL["default"]
    block_m = prefill_block_m(spec, sizes, 16 if is_split else 1024)
    caches = {"k_cache_ptr": f"*{dtype}", "v_cache_ptr": f"*{dtype}", "block_stride": "i64"}
    partials = {"acc_ptr": "*fp32", "lse_ptr": "*fp32", "num_splits": "i32"}
    return CompileCase(
        name=f"paged_attention.{'extend' if is_split else 'prefill'}-{shape}",
        kernel=prefill_kernel,
        signature={**prefill_signature(dtype), **caches, **partials},
        constexprs={**prefill_constexprs(spec, sizes, block_m), "IS_SPLIT": is_split},
        num_warps=sizes.num_warps,
        num_stages=sizes.num_stages,
        has_pdl=True,
    )
