"""Causal attention of a step's queries over each sequence's blocks in the paged cache.

One call serves prefill, prefill after a cached prefix, decode and any mix of them. Sequence s has
`cu_seqlens_q[s + 1] - cu_seqlens_q[s]` queries: the last of its `seq_lens[s]` tokens. The keys and
values of all its tokens are in the cache already, including those of this step.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch._choice import backend_module


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedAttentionSpec:
    """Shapes and dtype of an attention, fixed when the model is built.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: Key and value heads; query head h reads h // (num_heads / num_kv_heads).
        head_dim: Dimensions of a head.
        block_size: Tokens in a cache block.
        scale: Factor of the scores, usually head_dim ** -0.5; positive.
        dtype: Dtype of queries, cache and output.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Checks that key heads divide the query heads, and that the scale is positive."""
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        # Kernels look for the largest score before they scale.
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")


class StepSequences(Protocol):
    """The sequences of a step as attention reads them."""

    @property
    def cu_seqlens_q(self) -> torch.Tensor:
        """[num_seqs + 1], int32: index of each sequence's first query."""

    @property
    def seq_lens(self) -> torch.Tensor:
        """[num_seqs], int32: tokens of each sequence, including this step's; 0 for padding."""

    @property
    def block_table(self) -> torch.Tensor:
        """[num_seqs, max_blocks], int32: column j is the block of the tokens from j * block_size.

        On a GPU, columns after a sequence's last block may be read, so they must name blocks that
        exist.
        """

    @property
    def max_seqlen_q(self) -> int:
        """Upper bound of the queries of a sequence."""

    @property
    def max_seqlen_k(self) -> int:
        """Upper bound of `seq_lens`."""


class PagedAttention(Protocol):
    """The `paged_attention` that `plan_paged_attention` returns."""

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: StepSequences,
        /,
    ) -> torch.Tensor:
        """Attends with each query to the keys of its sequence up to its own position.

        Args:
            q: [num_tokens, num_heads, head_dim], heads contiguous; the sequences' queries in order.
            k_cache: [num_blocks, block_size, num_kv_heads, head_dim]; the last three dimensions
                are contiguous, the stride between blocks is free. Slots after a sequence's last
                token may hold anything, NaN included.
            v_cache: Same shape and strides as `k_cache`.
            step: The sequences of the step.

        Returns:
            [num_tokens, num_heads, head_dim], a new tensor. Scores and sums are float32. Rows of a
            sequence of length 0 are zero. Rows past cu_seqlens_q[-1] are unspecified.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("native", "cpu", "torch", "reference"),
    "cuda": ("triton",),
}
"""Back ends by device type, in the order in which "auto" tries them.

On a GPU there is no fallback. The back end `torch` gathers the whole cache of every sequence: with
the heads of Qwen3-4B, 34 GB for 512 sequences of 16,384 tokens, in every layer of every step. It
can be asked for by name.
"""

EXAMPLES = {
    "": PagedAttentionSpec(
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        block_size=16,
        scale=128**-0.5,
        dtype=torch.bfloat16,
    )
}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_paged_attention(
    spec: PagedAttentionSpec, device: torch.device | str, backend: str = "auto"
) -> PagedAttention:
    """Chooses a back end of `paged_attention` and binds it to a spec and a device.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device, or none can.
    """
    module = backend_module("paged_attention", spec, device, backend)
    return cast(PagedAttention, module.plan(spec, device))
