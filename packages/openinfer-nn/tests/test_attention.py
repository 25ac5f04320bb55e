"""Attention in parts and fused, over a small paged cache."""

import torch

from openinfer_nn import (
    CacheSpec,
    CacheView,
    FusedAttention,
    PagedAttention,
    PlaneSpec,
    RMSNorm,
    RotaryEmbedding,
    StepInputs,
)

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, NUM_TOKENS = 4, 2, 16, 4, 6
ON = {"device": "cpu", "dtype": torch.float32}
SIZES = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}


def _cache() -> CacheView:
    planes = tuple(PlaneSpec(name=n, num_heads=KV_HEADS, head_dim=HEAD_DIM) for n in "kv")
    spec = CacheSpec(group="full", kind="full", num_layers=1, planes=planes, dtype=torch.float32)
    # All bits set is NaN, so a read of an unwritten slot shows.
    arena = torch.full((3 * spec.bytes_per_block(BLOCK_SIZE),), 0xFF, dtype=torch.uint8)
    return CacheView(arena, spec, block_size=BLOCK_SIZE, num_blocks=3)


def _inputs() -> StepInputs:
    positions = torch.arange(NUM_TOKENS)
    table = torch.tensor([[2, 0]], dtype=torch.int32)
    slots = table[0].long()[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return StepInputs(
        token_ids=positions,
        positions=positions,
        cu_seqlens_q=torch.tensor([0, NUM_TOKENS], dtype=torch.int32),
        seq_lens=torch.tensor([NUM_TOKENS], dtype=torch.int32),
        block_table=table,
        slot_mapping=slots,
        logits_indices=positions,
        max_seqlen_q=NUM_TOKENS,
        max_seqlen_k=NUM_TOKENS,
    )


def test_attention_in_parts_is_causal_attention_and_fused_attention_is_the_same():
    generator = torch.Generator().manual_seed(0)
    rotary = RotaryEmbedding(**SIZES, theta=100.0, scaling=None, max_positions=8, **ON)
    attention = PagedAttention(**SIZES, block_size=BLOCK_SIZE, scale=0.25, **ON)
    norms = RMSNorm(HEAD_DIM, eps=1e-6, **ON), RMSNorm(HEAD_DIM, eps=1e-6, **ON)
    for norm in norms:
        norm.weight.copy_(torch.rand(HEAD_DIM, generator=generator) + 0.5)
    qkv = torch.randn(NUM_TOKENS, HEADS + 2 * KV_HEADS, HEAD_DIM, generator=generator)
    inputs = _inputs()
    q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    q, k = rotary(norms[0](q), norms[1](k), inputs.positions)
    heads = attention(q, k, v, inputs, _cache().layer(0))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1),
        is_causal=True, scale=0.25, enable_gqa=True,
    )  # fmt: skip
    torch.testing.assert_close(heads, expected.transpose(0, 1).flatten(1))
    fused = FusedAttention(attention, rotary, norms)
    torch.testing.assert_close(fused(qkv.flatten(1).clone(), inputs, _cache().layer(0)), heads)
