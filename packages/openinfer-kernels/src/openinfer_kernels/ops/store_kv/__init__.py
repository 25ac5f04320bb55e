"""The write of a step's keys and values into the paged cache."""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch import backend_module


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKVSpec:
    """Shape and dtype of a cache write, fixed when the model is built.

    Attributes:
        num_kv_heads: Key and value heads.
        head_dim: Dimensions of a head.
        block_size: Tokens of a cache block.
        dtype: Dtype of keys, values and cache.
    """

    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype


class StoreKV(Protocol):
    """The planned `store_kv`."""

    def __call__(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        /,
    ) -> None:
        """Copies each token's key and value to its slot.

        Args:
            k: [num_tokens, num_kv_heads, head_dim], heads contiguous.
            v: Same shape.
            k_cache: [num_blocks, block_size, num_kv_heads, head_dim]; blocks may lie apart, the
                last three dimensions are contiguous.
            v_cache: Same shape and strides.
            slot_mapping: [num_tokens], int64: block * block_size + offset. Every slot is written,
                so the slots of padding tokens belong to a block that is never read.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("native", "torch", "reference"),
    "cuda": ("triton", "torch", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {"": StoreKVSpec(num_kv_heads=8, head_dim=128, block_size=16, dtype=torch.bfloat16)}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_store_kv(spec: StoreKVSpec, device: torch.device | str, backend: str = "auto") -> StoreKV:
    """Chooses a back end of `store_kv` and binds it to a spec and a device.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    return cast(StoreKV, backend_module("store_kv", spec, device, backend).plan(spec, device))
