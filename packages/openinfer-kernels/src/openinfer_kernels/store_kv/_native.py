"""store_kv in one native call."""

import torch

from openinfer_kernels._native import library, why_not
from openinfer_kernels.store_kv import StoreKV, StoreKVSpec


def supports(spec: StoreKVSpec, device: torch.device) -> str | None:
    """bf16 on a CPU with the native kernels."""
    return why_not(spec.dtype, device)


def plan(spec: StoreKVSpec, device: torch.device | str) -> StoreKV:
    """Binds store_kv."""
    native, block_size, itemsize = library().store_kv, spec.block_size, spec.dtype.itemsize
    width = spec.num_kv_heads * spec.head_dim * itemsize

    def store_kv(
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        native(
            k.data_ptr(),
            v.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            slot_mapping.data_ptr(),
            k.shape[0],
            width,
            k.stride(0) * itemsize,
            v.stride(0) * itemsize,
            k_cache.stride(0) * itemsize,
            block_size,
        )

    return store_kv
