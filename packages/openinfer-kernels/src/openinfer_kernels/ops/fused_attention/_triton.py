"""Back end `triton` of fused_attention: chooses the kernels of a step.

| step | launched by |
|---|---|
| one token per sequence, 1 to 1,024 sequences | `_triton_decode`: one kernel, or two |
| any other | `_triton_prefill`: a kernel before `paged_attention` |

Both run on every GPU family; `_tuning` has their sizes by family. The two kernels of a decode step
are one over the prefixes that sequences share, if the step has any, and one over all other keys.
"""

import torch

from openinfer_kernels.dispatch._choice import Regime
from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.ops.fused_attention import (
    AttentionStep,
    FusedAttention,
    FusedAttentionSpec,
    _triton_decode,
    _triton_prefill,
)
from openinfer_kernels.ops.fused_attention._tuning import MAX_SEQS
from openinfer_kernels.ops.paged_attention._triton import compiled_specs
from openinfer_kernels.ops.paged_attention._triton import supports as supports_attention


def supports(spec: FusedAttentionSpec, device: torch.device) -> str | None:
    """Returns None if the kernels of `paged_attention` run this spec here, else the reason."""
    return supports_attention(spec.attention, device)


def regimes(spec: FusedAttentionSpec, device: torch.device) -> tuple[Regime, ...]:
    """Returns the kernels by the rows of a step."""
    return (
        Regime(rows=f"up to {MAX_SEQS} rows of one token", kernel="triton_decode"),
        Regime(rows="any other", kernel="triton_prefill"),
    )


def plan(spec: FusedAttentionSpec, device: torch.device | str) -> FusedAttention:
    """Binds the kernels to a spec and a device."""
    device = torch.device(device)
    decode = _triton_decode.DecodeLauncher(spec, device)
    prefill = _triton_prefill.PrefillLauncher(spec, device)

    def attend(
        qkv: torch.Tensor,
        norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
        cos_sin: torch.Tensor,
        step: AttentionStep,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        /,
    ) -> torch.Tensor:
        is_decode = step.max_seqlen_q == 1 and 0 < step.seq_lens.shape[0] <= MAX_SEQS
        launch = decode if is_decode else prefill
        return launch(qkv, norm_weights, cos_sin, step, k_cache, v_cache)

    return attend


def compile_cases() -> list[CompileCase]:
    """Returns every kernel for each spec that `paged_attention` is compiled for."""
    cases: list[CompileCase] = []
    for attention in compiled_specs():
        spec = FusedAttentionSpec(attention=attention, norm_eps=1e-6)
        cases += [*_triton_decode.compile_cases(spec), _triton_prefill.compile_case(spec)]
    return cases
