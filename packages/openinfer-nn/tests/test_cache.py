import pytest
import torch

from openinfer_nn import CacheSpec, CacheView, PlaneSpec

SPEC = CacheSpec(
    group="full",
    kind="full",
    num_layers=3,
    planes=(
        PlaneSpec(name="k", num_heads=2, head_dim=4),
        PlaneSpec(name="v", num_heads=1, head_dim=6),
    ),
    dtype=torch.bfloat16,
)


def test_sizes():
    assert SPEC.bytes_per_token == 3 * (2 * 4 + 1 * 6) * 2
    assert SPEC.bytes_per_block(16) == 16 * SPEC.bytes_per_token


def test_views_tile_the_arena_and_a_block_is_one_run_of_bytes():
    arena = torch.zeros(5 * SPEC.bytes_per_block(16), dtype=torch.uint8)
    view = CacheView(arena, SPEC, block_size=16, num_blocks=5)
    number = 0
    for layer in range(3):
        k, v = view.layer(layer)
        assert k.shape == (5, 16, 2, 4)
        assert v.shape == (5, 16, 1, 6)
        assert k[0].is_contiguous()
        assert v[0].is_contiguous()
        for plane in (k, v):
            number += 1
            assert (plane == 0).all(), "two planes overlap"
            plane.fill_(number)
    blocks = arena.view(torch.bfloat16).view(5, -1)
    assert (blocks != 0).all()
    assert torch.equal(blocks[0], blocks[4])
    view.layer(1)[0][3] = 9.0
    changed = (arena.view(torch.bfloat16).view(5, -1) == 9.0).any(dim=1)
    assert changed.tolist() == [False, False, False, True, False]


def test_a_view_of_a_larger_arena_begins_where_it_does():
    arena = torch.zeros(64 + SPEC.bytes_per_block(16), dtype=torch.uint8)
    view = CacheView(arena[64:], SPEC, block_size=16, num_blocks=1)
    view.layer(0)[0][0, 0, 0, 0] = 1.0
    assert arena[:64].eq(0).all()
    assert arena[64:66].ne(0).any()


@pytest.mark.parametrize(
    "arena",
    [
        torch.zeros(10, dtype=torch.uint8),
        torch.zeros(SPEC.bytes_per_block(16), dtype=torch.int8),
        torch.zeros(2 * SPEC.bytes_per_block(16), dtype=torch.uint8)[::2],
    ],
    ids=["size", "dtype", "strides"],
)
def test_another_arena_is_refused(arena):
    with pytest.raises(ValueError, match="the arena must be"):
        CacheView(arena, SPEC, block_size=16, num_blocks=1)
