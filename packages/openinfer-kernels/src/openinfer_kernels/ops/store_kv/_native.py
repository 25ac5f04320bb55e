"""store_kv as one native call."""

import torch

from openinfer_kernels.native import library, why_not, wrong_tensors
from openinfer_kernels.ops.store_kv import StoreKV, StoreKVSpec


def supports(spec: StoreKVSpec, device: torch.device) -> str | None:
    """Returns None if the native kernels run on this device in this dtype, else the reason."""
    return why_not(spec.dtype, device)


def plan(spec: StoreKVSpec, device: torch.device | str) -> StoreKV:
    """Returns `store_kv` for a spec and a device."""
    native, block_size, itemsize = library().store_kv, spec.block_size, spec.dtype.itemsize
    rows, heads = (spec.num_kv_heads, spec.head_dim), (spec.head_dim, 1)
    block = (block_size, *rows)
    slots = (spec.num_kv_heads * spec.head_dim, *heads)
    wanted = (
        f"k and v [num_tokens, {rows[0]}, {rows[1]}], caches [num_blocks, {block_size}, {rows[0]}, "
        f"{rows[1]}] of the same strides, all in bf16, heads and blocks contiguous, and "
        "slot_mapping [num_tokens] in int64, contiguous"
    )
    width = spec.num_kv_heads * spec.head_dim * itemsize

    def store_kv(
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        num_tokens, cache_shape = slot_mapping.numel(), k_cache.shape
        if (
            k.dtype is not torch.bfloat16
            or v.dtype is not torch.bfloat16
            or k_cache.dtype is not torch.bfloat16
            or v_cache.dtype is not torch.bfloat16
            or slot_mapping.dtype is not torch.int64
            or k.shape != (num_tokens, *rows)
            or v.shape != k.shape
            or k.stride()[1:] != heads
            or v.stride()[1:] != heads
            or cache_shape[1:] != block
            or v_cache.shape != cache_shape
            or k_cache.stride()[1:] != slots
            or v_cache.stride() != k_cache.stride()
            or not slot_mapping.is_contiguous()
            or not (k.is_cpu and v.is_cpu and k_cache.is_cpu and v_cache.is_cpu)
            or not slot_mapping.is_cpu
        ):
            given = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache}
            raise wrong_tensors("store_kv", wanted, **given, slot_mapping=slot_mapping)
        num_stored = native(
            k.data_ptr(),
            v.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            slot_mapping.data_ptr(),
            num_tokens,
            width,
            k.stride(0) * itemsize,
            v.stride(0) * itemsize,
            k_cache.stride(0) * itemsize,
            block_size,
            cache_shape[0],
        )
        if num_stored != num_tokens:
            slot = int(slot_mapping[num_stored])
            num_slots = cache_shape[0] * block_size
            raise ValueError(f"store_kv: slot {slot} is not in a cache of {num_slots} slots")

    return store_kv
