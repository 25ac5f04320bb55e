from fractions import Fraction

import pytest

from openinfer_kv_cache import CacheGroup, KVCache, Plane, Resume, UnsupportedGroup

K = Plane(name="k", bytes_per_token=100)
FULL = CacheGroup(name="full", planes=(K,))
WIDE = Plane(name="k", bytes_per_token=64)
LARGE = CacheGroup(name="large", tokens_per_block=32, planes=(WIDE,))
SMALL = CacheGroup(name="small", planes=(WIDE,))


def test_bytes_of_a_block():
    group = CacheGroup(
        name="full", tokens_per_block=16, planes=(K, Plane(name="v", bytes_per_token=28))
    )
    assert group.bytes_per_block == 16 * 128


@pytest.mark.parametrize(
    "options",
    [
        {"tokens_per_block": 0},
        {"tokens_per_block": 1.5},
        {"planes": ()},
        {"planes": (K, K)},
        {"shard": "head"},
        {"entries_per_token": 0},
        {"entries_per_token": 2},
        {"kind": "window", "window": 2.5},
    ],
    ids=str,
)
def test_nonsense_is_refused(options):
    with pytest.raises(ValueError, match="'g'"):
        CacheGroup(**{"name": "g", "planes": (K,), **options})
    for num_bytes in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="'k': bytes_per_token"):
            Plane(name="k", bytes_per_token=num_bytes)


def test_compressed_entries_belong_to_several_tokens():
    quarter = CacheGroup(
        name="c4", tokens_per_block=16, entries_per_token=Fraction(1, 4), planes=(K,)
    )
    assert (quarter.entries_per_block, quarter.bytes_per_block) == (4, 400)
    with pytest.raises(ValueError, match=r"'c4'.*multiple of the 4 tokens"):
        CacheGroup(name="c4", tokens_per_block=6, entries_per_token=Fraction(1, 4), planes=(K,))
    state = CacheGroup(name="gdn", kind="state", planes=(K,))
    assert (state.entries_per_block, state.bytes_per_block) == (1, 100)


@pytest.mark.parametrize(
    "options",
    [{"kind": "window"}, {"kind": "window", "window": 0}, {"window": 8}, {"kind": "ring"}],
    ids=str,
)
def test_kinds_and_windows_go_together(options):
    with pytest.raises(ValueError, match="'near'"):
        CacheGroup(name="near", planes=(K,), **options)


@pytest.mark.parametrize("name", ["every_tokens", "output_tokens"])
def test_resume_points_are_checked(name):
    with pytest.raises(ValueError, match=name):
        Resume(**{name: 0})


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ((), {"num_blocks": 4}, "group"),
        ((FULL, FULL), {"num_slabs": 4}, "distinct"),
        ((FULL,), {}, "num_blocks"),
        ((FULL,), {"num_slabs": 4}, "num_blocks"),
        ((FULL, CacheGroup(name="b", planes=(K,))), {"num_blocks": 4}, "num_slabs"),
        ((FULL,), {"num_blocks": 0}, "num_blocks"),
        ((LARGE, SMALL), {"num_slabs": 0}, "num_slabs"),
    ],
    ids=["none", "twice", "no size", "slabs of one", "blocks of two", "no block", "no slab"],
)
def test_a_cache_checks_its_groups_and_size(groups, options, message):
    with pytest.raises(ValueError, match=message):
        KVCache(groups, **options)


def test_blocks_that_do_not_nest_are_refused_by_name():
    odd = CacheGroup(name="odd", tokens_per_block=24, planes=(K,))
    with pytest.raises(UnsupportedGroup, match=r"'odd'.*24.*16") as caught:
        KVCache((FULL, odd), num_slabs=4)
    assert (caught.value.name, caught.value.kind) == ("odd", "full")


def test_events_need_blocks_of_one_size():
    with pytest.raises(UnsupportedGroup, match=r"'large'.*events"):
        KVCache((SMALL, LARGE), num_slabs=4, has_events=True)
