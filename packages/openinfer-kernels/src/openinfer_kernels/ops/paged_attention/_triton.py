"""Back end `triton` of paged_attention: chooses the kernel of a step by GPU and by step size.

| GPU | heads and blocks | step | launched by |
|---|---|---|---|
| Hopper | see `why_not_gluon` | its tokens fill tiles | `_gluon_prefill` |
| any | any | any other, decode included | `_triton_prefill` |

The choice depends on the numbers of tokens and sequences alone. Both are known when a step is
captured; the lengths of its sequences are not.
"""

from typing import TYPE_CHECKING

import torch

from openinfer_kernels.dispatch._choice import Regime
from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._support import TRITON_DTYPES, why_not_hopper, why_not_triton
from openinfer_kernels.ops.paged_attention import (
    PagedAttention,
    PagedAttentionSpec,
    StepSequences,
    _triton_prefill,
)
from openinfer_kernels.ops.paged_attention._tuning import GLUON_PREFILL

if TYPE_CHECKING:
    from openinfer_kernels.ops.paged_attention._gluon_prefill import GluonPrefillLauncher

_HEAD_DIMS = (32, 64, 128, 256)


def supports(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    """Returns None if the kernels run this spec on this device, else the reason."""
    if spec.head_dim not in _HEAD_DIMS:
        return f"head_dim must be 32, 64, 128 or 256, got {spec.head_dim}"
    return why_not_triton(spec.dtype, device)


def regimes(spec: PagedAttentionSpec, device: torch.device) -> tuple[Regime, ...]:
    """Returns the kernels by the tokens of a step."""
    why_not = _why_not_gluon_prefill(spec, device)
    tiles = -(-GLUON_PREFILL["hopper"].min_programs // spec.num_kv_heads)
    min_tokens = tiles * GLUON_PREFILL["hopper"].block_m * spec.num_kv_heads // spec.num_heads
    return (
        Regime(
            rows=f"prefills of {min_tokens} rows and more", kernel="gluon_prefill", why_not=why_not
        ),
        Regime(rows="any other", kernel="triton_prefill"),
    )


def plan(spec: PagedAttentionSpec, device: torch.device | str) -> PagedAttention:
    """Binds the kernels that suit the device."""
    device = torch.device(device)
    portable = _triton_prefill.TritonPrefillLauncher(spec, device)
    hopper = _plan_gluon_prefill(spec, device)

    def attend(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepSequences
    ) -> torch.Tensor:
        num_tokens, num_seqs = q.shape[0], step.seq_lens.shape[0]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if num_seqs == 0 or num_tokens == 0:
            return out
        fills_tiles = hopper is not None and hopper.fills_tiles(num_tokens, num_seqs)
        launch = hopper if hopper is not None and fills_tiles else portable
        cache = (k_cache, v_cache, step.cu_seqlens_q, step.seq_lens, step.block_table)
        launch(q, cache, out, step.max_seqlen_q, step.max_seqlen_k)
        return out

    return attend


def _plan_gluon_prefill(
    spec: PagedAttentionSpec, device: torch.device
) -> "GluonPrefillLauncher | None":
    if _why_not_gluon_prefill(spec, device) is not None:
        return None
    from openinfer_kernels.ops.paged_attention import _gluon_prefill

    return _gluon_prefill.GluonPrefillLauncher(spec)


def _why_not_gluon_prefill(spec: PagedAttentionSpec, device: torch.device) -> str | None:
    reason = why_not_hopper(device)
    if reason is not None:
        return reason
    # Imported on Hopper only: other versions of Triton may not have Gluon's names.
    from openinfer_kernels.ops.paged_attention import _gluon_prefill

    return _gluon_prefill.why_not_gluon(spec, device)


# Heads of Qwen3, a group of 7 heads with few dimensions, and the widest heads. A dtype is compiled
# with the heads that need most shared memory in it.
_COMPILED_HEADS = {
    torch.bfloat16: ((32, 8, 128), (7, 1, 64), (16, 4, 256)),
    torch.float16: ((32, 8, 128),),
    torch.float32: ((7, 1, 64), (16, 4, 256)),
}


def compiled_specs() -> list[PagedAttentionSpec]:
    """Returns the specs that the compile gate compiles: the heads above."""
    return [
        PagedAttentionSpec(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=16,
            scale=head_dim**-0.5,
            dtype=dtype,
        )
        for dtype, shapes in _COMPILED_HEADS.items()
        for num_heads, num_kv_heads, head_dim in shapes
    ]


def compile_cases() -> list[CompileCase]:
    """Returns every kernel of the back end, for each of the heads above."""
    from openinfer_kernels.ops.paged_attention import _gluon_prefill

    cases: list[CompileCase | None] = []
    for spec in compiled_specs():
        heads = f"{spec.num_heads}x{spec.num_kv_heads}x{spec.head_dim}"
        shape = f"{TRITON_DTYPES[spec.dtype]}-{heads}"
        cases += _triton_prefill.compile_cases(spec, shape)
        cases.append(_gluon_prefill.compile_case(spec, shape))
    return [case for case in cases if case is not None]
