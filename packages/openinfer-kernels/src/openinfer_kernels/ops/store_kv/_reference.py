"""The definition of store_kv: one token after the other."""

import torch

from openinfer_kernels.ops.store_kv import StoreKV, StoreKVSpec


def plan(spec: StoreKVSpec, device: torch.device | str) -> StoreKV:
    """Returns `store_kv` for a spec and a device."""

    def store_kv(
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        for token, slot in enumerate(slot_mapping.tolist()):
            block, offset = divmod(slot, spec.block_size)
            k_cache[block, offset] = k[token]
            v_cache[block, offset] = v[token]

    return store_kv
