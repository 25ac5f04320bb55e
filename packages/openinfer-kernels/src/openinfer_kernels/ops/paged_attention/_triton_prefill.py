"""How steps in which a sequence has more than one query are launched.

On a Hopper GPU by `_gluon_prefill` where tokens fill its tiles, else by that of
`_triton_prefill_kernels`, whose tiles are smaller and which splits keys among programs where tiles
are few.
What decides is known when a step is recorded: tokens and sequences, no lengths.
"""

from typing import TYPE_CHECKING, Any, Protocol

import torch

from openinfer_kernels.gpu._support import (
    TRITON_DTYPES,
    CompileCase,
    launches_dependents,
    why_not_hopper,
)
from openinfer_kernels.ops.paged_attention import PagedAttentionSpec
from openinfer_kernels.ops.paged_attention._triton_prefill_kernels import (
    merge_splits_kernel,
    prefill_kernel,
)
from openinfer_kernels.ops.paged_attention._tuning import (
    MAX_SPLITS,
    constexprs,
    num_splits,
    prefill_inputs,
    prefill_rows,
)

if TYPE_CHECKING:
    from openinfer_kernels.ops.paged_attention._gluon_prefill import GluonPrefill


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


def plan_prefill(spec: PagedAttentionSpec, device: torch.device) -> Prefill:
    """Binds what suits the device."""
    anywhere = TritonPrefill(spec, device)
    if why_not_hopper(device) is not None:
        return anywhere
    # Imported on Hopper only: other versions of Triton may not have Gluon's names.
    from openinfer_kernels.ops.paged_attention import _gluon_prefill

    if _gluon_prefill.why_not_gluon(spec, device) is not None:
        return anywhere
    return _ByNumber(anywhere, _gluon_prefill.GluonPrefill(spec))


class _ByNumber:
    """The kernel for Hopper where it is worth it."""

    def __init__(self, few: Prefill, many: "GluonPrefill") -> None:
        self._few, self._many = few, many

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


class TritonPrefill:
    """The launches of `_triton_prefill_kernels`."""

    def __init__(self, spec: PagedAttentionSpec, device: torch.device) -> None:
        """Binds them."""
        self._spec = spec
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
                MAX_SPLITS=MAX_SPLITS,
                num_warps=1,
                **self._launch,
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
            has_pdl=True,
        )
    )
    from openinfer_kernels.ops.paged_attention import _gluon_prefill

    case = _gluon_prefill.compile_case(spec, shape)
    return cases if case is None else [*cases, case]


def _triton_case(spec: PagedAttentionSpec, shape: str, is_split: bool) -> CompileCase:
    dtype = TRITON_DTYPES[spec.dtype]
    rows = prefill_rows(spec, 16 if is_split else 1024)
    caches = {"k_cache_ptr": f"*{dtype}", "v_cache_ptr": f"*{dtype}", "block_stride": "i64"}
    partials = {"acc_ptr": "*fp32", "lse_ptr": "*fp32", "num_splits": "i32"}
    return CompileCase(
        name=f"paged_attention.{'extend' if is_split else 'prefill'}-{shape}",
        kernel=prefill_kernel,
        signature={**prefill_inputs(dtype), **caches, **partials},
        constexprs={**constexprs(spec, rows), "IS_SPLIT": is_split},
        num_warps=4,
        num_stages=2,
        has_pdl=True,
    )
