"""store_kv as one indexed write for keys and one for values, on any device.

Nothing is read back to the host.
"""

import torch

from openinfer_kernels.ops.store_kv import StoreKV, StoreKVSpec


def plan(spec: StoreKVSpec, device: torch.device | str) -> StoreKV:
    """Returns `store_kv` for a spec and a device."""
    block_size = spec.block_size

    def store_kv(
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        index = (slot_mapping // block_size, slot_mapping % block_size)
        k_cache.index_put_(index, k)
        v_cache.index_put_(index, v)

    return store_kv
