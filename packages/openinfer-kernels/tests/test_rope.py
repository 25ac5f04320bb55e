import pytest
import torch

from openinfer_kernels import BackendUnavailable, RopeSpec, plan_rope


def _table(num_positions: int, head_dim: int) -> torch.Tensor:
    frequencies = 10_000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


@pytest.mark.parametrize("backend", ["native", "torch", "triton"])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(4, 2, 64), (7, 1, 64), (5, 5, 128)],
    ids=["H4-K2-D64", "H7-K1-D64", "H5-K5-D128"],
)
@pytest.mark.parametrize("num_tokens", [1, 6, 0])
def test_rope(
    backend,
    num_heads,
    num_kv_heads,
    head_dim,
    num_tokens,
    dtype,
    random,
    assert_close,
    triton_device,
):
    device = triton_device if backend == "triton" else "cpu"
    spec = RopeSpec(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    fused = random(num_tokens, num_heads + num_kv_heads, head_dim, dtype=dtype)
    positions = torch.tensor([0, 1, 99, 5, 5, 42][:num_tokens], dtype=torch.int64)
    table = _table(100, head_dim)
    q, k = fused.split((num_heads, num_kv_heads), dim=1)
    expected = plan_rope(spec, "cpu", "reference")(q, k, table, positions)
    q, k = fused.to(device).split((num_heads, num_kv_heads), dim=1)
    got = plan_rope(spec, device, backend)(q, k, table.to(device), positions.to(device))
    assert_close(got[0], expected[0])
    assert_close(got[1], expected[1])


@pytest.mark.parametrize("num_tokens", [204, 205, 1000])
def test_a_long_prefill_is_rotated_in_blocks(num_tokens, random):
    # A token has 640 elements, so a block has 204 tokens.
    spec = RopeSpec(num_heads=4, num_kv_heads=1, head_dim=128, dtype=torch.bfloat16)
    fused = random(num_tokens, 7, 128, dtype=torch.bfloat16)
    q, k, _ = fused.split((4, 1, 2), dim=1)
    positions, table = torch.arange(num_tokens).flip(0), _table(num_tokens, 128)
    rope = plan_rope(spec, "cpu", "torch")
    parts = [slice(begin, begin + 100) for begin in range(0, num_tokens, 100)]
    expected = [rope(q[part], k[part], table, positions[part]) for part in parts]
    got_q, got_k = rope(q, k, table, positions)
    assert torch.equal(got_q, torch.cat([turned for turned, _ in expected]))
    assert torch.equal(got_k, torch.cat([turned for _, turned in expected]))


def test_scores_depend_on_distance_alone(random, assert_close):
    spec = RopeSpec(num_heads=1, num_kv_heads=1, head_dim=64, dtype=torch.float32)
    rope, table = plan_rope(spec, "cpu"), _table(100, 64)
    q, k = random(1, 1, 64), random(1, 1, 64)

    def score(q_position: int, k_position: int) -> torch.Tensor:
        rotated_q, _ = rope(q, k, table, torch.tensor([q_position]))
        _, rotated_k = rope(q, k, table, torch.tensor([k_position]))
        return (rotated_q * rotated_k).sum()

    assert_close(score(17, 3), score(74, 60))
    assert not torch.allclose(score(17, 3), score(17, 4), atol=1e-3)


def test_triton_refuses_what_it_cannot_rotate():
    spec = RopeSpec(num_heads=1, num_kv_heads=1, head_dim=96, dtype=torch.float32)
    with pytest.raises(BackendUnavailable, match="power of two, got 96"):
        plan_rope(spec, "cuda", "triton")
