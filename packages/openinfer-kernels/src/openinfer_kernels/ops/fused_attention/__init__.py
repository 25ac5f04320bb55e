"""All of a layer's attention between its two products: from projections to heads' outputs.

Queries and keys are normalised head by head if the model does that, rotated to their positions,
keys and values written to the paged cache, and queries attended: `rms_norm`, `rope`, `store_kv` and
`paged_attention`, one after another, is the definition.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch._choice import backend_module, is_of_part
from openinfer_kernels.ops.fused_attention._shared_prefixes import (
    MAX_PREFIX_GROUPS,
    PrefixGroup,
    PrefixTable,
    SharedPrefixes,
)
from openinfer_kernels.ops.paged_attention import PagedAttentionSpec

__all__ = [
    "MAX_PREFIX_GROUPS",
    "AttentionStep",
    "FusedAttention",
    "FusedAttentionSpec",
    "PrefixGroup",
    "PrefixTable",
    "SharedPrefixes",
    "plan_fused_attention",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedAttentionSpec:
    """What is fixed about it when the model is built.

    Attributes:
        attention: Of the attention itself.
        norm_eps: Query and key heads are normalised as `rms_norm` does, with this eps; None if
            they are not.
    """

    attention: PagedAttentionSpec
    norm_eps: float | None = None


class AttentionStep(Protocol):
    """The rows of a step, as attention wants them; shapes and bounds as in `PagedAttention`."""

    @property
    def positions(self) -> torch.Tensor:
        """[num_tokens], int64, each below max_positions."""

    @property
    def slot_mapping(self) -> torch.Tensor:
        """[num_tokens], int64, as in `StoreKV`."""

    @property
    def cu_seqlens_q(self) -> torch.Tensor:
        """[num_seqs + 1], int32."""

    @property
    def seq_lens(self) -> torch.Tensor:
        """[num_seqs], int32."""

    @property
    def block_table(self) -> torch.Tensor:
        """[num_seqs, max_blocks], int32."""

    @property
    def max_seqlen_q(self) -> int:
        """At least the most queries of a sequence."""

    @property
    def max_seqlen_k(self) -> int:
        """At least the longest sequence."""

    @property
    def shared(self) -> SharedPrefixes | None:
        """What a step of one token a sequence knows of shared prefixes; None for nothing."""


class FusedAttention(Protocol):
    """A bound `fused_attention`."""

    def __call__(
        self,
        qkv: torch.Tensor,
        norm_weights: tuple[torch.Tensor, torch.Tensor] | None,
        cos_sin: torch.Tensor,
        step: AttentionStep,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        /,
    ) -> torch.Tensor:
        """Attends.

        On a device the step's tensors and the tokens that are cached already must have been
        written before the step's first launch of a kernel that is no op of this package: fused
        kernels read them while the op before is still running.

        Args:
            qkv: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], contiguous: queries, keys,
                values. It is consumed: a backend may overwrite it.
            norm_weights: Those of queries and of keys, [head_dim] each, if the spec normalises.
            cos_sin: [max_positions, head_dim], float32, as in `Rope`.
            step: The rows.
            k_cache: As in `PagedAttention`; this step's keys are written to it.
            v_cache: Same shape and strides; likewise.

        Returns:
            [num_tokens, num_heads * head_dim], a new tensor.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("native", "composed", "reference"),
    "cuda": ("triton", "composed", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {
    "": FusedAttentionSpec(
        attention=PagedAttentionSpec(
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            block_size=16,
            scale=128**-0.5,
            dtype=torch.bfloat16,
        ),
        norm_eps=1e-6,
    )
}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_fused_attention(
    spec: FusedAttentionSpec, device: torch.device | str, backend: str = "auto"
) -> FusedAttention:
    """Chooses and binds `fused_attention`.

    Args:
        spec: Of the attention.
        device: Where it runs.
        backend: "auto", one of its own, or one of `paged_attention`: then its parts run in turn,
            that one by the backend named.

    Raises:
        BackendUnavailable: The backend cannot run this spec on this device.
    """
    if is_of_part("paged_attention", "fused_attention", backend):
        module = backend_module("fused_attention", spec, device, "composed")
        return cast(FusedAttention, module.plan(spec, device, attention_backend=backend))
    module = backend_module("fused_attention", spec, device, backend)
    return cast(FusedAttention, module.plan(spec, device))
