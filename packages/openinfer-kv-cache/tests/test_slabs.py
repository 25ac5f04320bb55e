"""Slabs that the blocks of every group divide, at the sizes of real models."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_kv_cache import CacheGroup, Plane, UnsupportedGroup, plan_slabs


def group(name, num_bytes, **options):
    return CacheGroup(
        name=name,
        tokens_per_block=1,
        planes=(Plane(name="p", bytes_per_token=num_bytes),),
        **options,
    )


def check(groups, layout, max_padding=0.02, alignment=256):
    sizes = zip(groups, layout.block_strides, layout.blocks_per_slab, strict=True)
    for one, stride, num in sizes:
        assert stride * num == layout.slab_bytes, "a block's offset is a multiple of its stride"
        assert stride % alignment == 0
        assert 0 <= stride - one.bytes_per_block <= max_padding * stride


def test_a_state_of_qwen35_is_one_slab(qwen35):
    layout = plan_slabs(qwen35)
    assert [one.bytes_per_block for one in qwen35] == [512 << 10, 51_511_296]
    check(qwen35, layout)
    assert layout.blocks_per_slab[1] == 1
    assert layout.slab_bytes < 1.001 * 51_511_296
    assert layout.num_slabs(100 << 30) == (100 << 30) // layout.slab_bytes
    last = layout.num_slabs(100 << 30) * layout.blocks_per_slab[0] - 1
    assert layout.offset(0, last) + layout.block_strides[0] <= 100 << 30, "beyond 31 bits"


def test_the_planes_of_deepseek_v4_share_slabs(deepseek_v4):
    layout = plan_slabs(deepseek_v4)
    assert [one.bytes_per_block for one in deepseek_v4] == [107_520, 20_480, 704_512]
    check(deepseek_v4, layout)
    assert layout.slab_bytes < 10 * 704_512


@pytest.mark.long
@settings(max_examples=150, deadline=None, derandomize=True)
@given(sizes=st.lists(st.integers(10, 40_000), min_size=1, max_size=4))
def test_any_sizes_fit_or_a_group_is_named(sizes):
    groups = [group(f"g{i}", 64 * size) for i, size in enumerate(sizes)]
    try:
        layout = plan_slabs(groups)
    except UnsupportedGroup as error:
        name = error.name
    else:
        check(groups, layout, alignment=16)
        return
    assert name in {one.name for one in groups}


def test_small_blocks_are_aligned_less():
    groups = [group("a", 16 * 101), group("b", 16 * 303)]
    layout = plan_slabs(groups)
    assert layout.block_strides == (1616, 4848)


def test_one_group_wastes_nothing_but_alignment():
    layout = plan_slabs([group("g", 51_200)])
    assert (layout.slab_bytes, layout.blocks_per_slab) == (51_200, (1,))


def test_a_huge_block_is_planned_at_once():
    """An array of all lengths up to twice this one, in units of 256 bytes, would take 250 GB."""
    num_bytes = 1 << 43
    assert plan_slabs([group("g", num_bytes)]).slab_bytes == num_bytes


@pytest.mark.parametrize("sizes", [[100, 4096], [4096, 100]])
def test_a_block_too_small_to_align_is_named(sizes):
    with pytest.raises(UnsupportedGroup, match=r"100 bytes.*10\.7%.*tokens_per_block"):
        plan_slabs([group("a", sizes[0]), group("b", sizes[1])])


def test_blocks_that_do_not_go_together_are_named_with_their_padding():
    primes = [61, 67, 71, 73]
    groups = [group(f"g{p}", 256 * p) for p in primes]
    with pytest.raises(UnsupportedGroup, match=r"\d% padding .*tokens_per_block"):
        plan_slabs(groups, max_padding=0.0)
    check(groups, plan_slabs(groups), alignment=16)


def test_compressed_entries_have_whole_blocks():
    with pytest.raises(ValueError, match="128"):
        CacheGroup(
            name="c128",
            tokens_per_block=16,
            entries_per_token=Fraction(1, 128),
            planes=(Plane(name="p", bytes_per_token=1024),),
        )
