import pytest
import torch

from openinfer_kernels import StoreKVSpec, plan_store_kv


@pytest.mark.parametrize("backend", ["reference", "native", "torch", "triton"])
@pytest.mark.parametrize("slots", [[], [37], [0, 79, 16, 15, 33]], ids=len)
def test_tokens_land_in_their_slots_and_nowhere_else(backend, slots, dtype, random, triton_device):
    device = triton_device if backend == "triton" else "cpu"
    spec = StoreKVSpec(num_kv_heads=3, head_dim=64, block_size=16, dtype=dtype)
    # A block holds keys and values of two layers, so a layer's cache is not contiguous.
    arena = random(5, 2, 2, 16, 3, 64, dtype=dtype).to(device)
    expected = arena.clone()
    fused = random(len(slots), 8, 3, 64, dtype=dtype).to(device)
    k, v = fused[:, 1], fused[:, 4]
    for token, slot in enumerate(slots):
        expected[slot // 16, 1, 0, slot % 16] = k[token]
        expected[slot // 16, 1, 1, slot % 16] = v[token]
    slot_mapping = torch.tensor(slots, dtype=torch.int64, device=device)
    plan_store_kv(spec, device, backend)(k, v, arena[:, 1, 0], arena[:, 1, 1], slot_mapping)
    assert torch.equal(arena, expected)


@pytest.mark.slow
def test_offsets_beyond_two_billion_elements(triton_device):
    """The block lies past 2^31 elements; 32-bit offsets would write elsewhere."""
    spec = StoreKVSpec(num_kv_heads=1, head_dim=64, block_size=16, dtype=torch.float16)
    block = 2**31 // (16 * 64) + 3
    cache = torch.zeros(block + 1, 16, 1, 64, dtype=torch.float16, device=triton_device)
    k = torch.ones(1, 1, 64, dtype=torch.float16, device=triton_device)
    slot_mapping = torch.tensor([block * 16 + 5], device=triton_device)
    plan_store_kv(spec, triton_device, "triton")(k, k, cache, cache, slot_mapping)
    assert cache[block, 5].eq(1).all()
    assert cache[:4].eq(0).all()
