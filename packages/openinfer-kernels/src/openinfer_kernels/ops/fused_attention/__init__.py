"""An attention layer between its projections: from queries, keys and values to heads' outputs.

Queries and keys are normalised head by head if the model does that, and rotated to their positions.
Keys and values are written to the paged cache, then queries attend to it. The definition is
`rms_norm`, `rope`, `store_kv` and `paged_attention`, one after another.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch._choice import backend_module, is_of_part
from openinfer_kernels.ops import paged_attention
from openinfer_kernels.ops.fused_attention._shared_prefixes import (
    MAX_PREFIX_GROUPS,
    PrefixGroup,
    PrefixTable,
    SharedPrefixes,
)
from openinfer_kernels.ops.paged_attention import PagedAttentionSpec, StepSequences

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
    """The attention and its head norms, fixed when the model is built.

    Attributes:
        attention: Spec of the attention itself.
        norm_eps: Eps of the `rms_norm` of query and key heads; None if they are not normalised.
    """

    attention: PagedAttentionSpec
    norm_eps: float | None = None


class AttentionStep(StepSequences, Protocol):
    """The rows of a step as attention reads them."""

    @property
    def positions(self) -> torch.Tensor:
        """[num_tokens], int64, each below max_positions."""

    @property
    def slot_mapping(self) -> torch.Tensor:
        """[num_tokens], int64, as in `StoreKV`."""

    @property
    def shared(self) -> SharedPrefixes | None:
        """Shared prefixes of a decode step; None if unknown, or for other steps."""


class FusedAttention(Protocol):
    """The `fused_attention` that `plan_fused_attention` returns."""

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
        """Writes the step's keys and values to the cache and attends with its queries.

        On a GPU, fused kernels read the step's tensors and the cached tokens while the op before
        is still running. Both must have been written before an ordinary kernel of this step, such
        as the embedding's: one that is no op of this package.

        Args:
            qkv: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], contiguous: queries, keys,
                values. A back end may overwrite it.
            norm_weights: Norm weights of queries and of keys, [head_dim] each; None if the spec has
                no `norm_eps`.
            cos_sin: [max_positions, head_dim], float32, as in `Rope`.
            step: The rows of the step.
            k_cache: As in `PagedAttention`; this step's keys are written to it.
            v_cache: Same shape and strides; this step's values are written to it.

        Returns:
            [num_tokens, num_heads * head_dim], a new tensor.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("native", "composed", "reference"),
    "cuda": ("triton", "composed"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {
    name: FusedAttentionSpec(attention=attention, norm_eps=1e-6)
    for name, attention in paged_attention.EXAMPLES.items()
}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_fused_attention(
    spec: FusedAttentionSpec, device: torch.device | str, backend: str = "auto"
) -> FusedAttention:
    """Chooses a back end of `fused_attention` and binds it to a spec and a device.

    Args:
        spec: The attention and its head norms.
        device: Device of all tensors.
        backend: "auto", a back end of `fused_attention`, or one of `paged_attention`. With the
            latter, the parts run one after another, and `paged_attention` by that back end.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    if is_of_part("paged_attention", "fused_attention", backend):
        module = backend_module("fused_attention", spec, device, "composed")
        return cast(FusedAttention, module.plan(spec, device, attention_backend=backend))
    module = backend_module("fused_attention", spec, device, backend)
    return cast(FusedAttention, module.plan(spec, device))
