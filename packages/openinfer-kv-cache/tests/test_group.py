import pytest

from openinfer_kv_cache import CacheGroup, KVCache, Plane, UnsupportedGroup

K = Plane(name="k", bytes_per_token=100)


def test_bytes_of_a_block():
    group = CacheGroup(
        name="full", tokens_per_block=16, planes=(K, Plane(name="v", bytes_per_token=28))
    )
    assert group.bytes_per_block == 16 * 128


@pytest.mark.parametrize(
    "options", [{"tokens_per_block": 0}, {"planes": ()}, {"planes": (K, K)}], ids=str
)
def test_nonsense_is_refused(options):
    with pytest.raises(ValueError, match="g"):
        CacheGroup(**{"name": "g", "planes": (K,), **options})
    with pytest.raises(ValueError, match="bytes"):
        Plane(name="k", bytes_per_token=0)


def test_what_is_not_kept_is_refused_by_name():
    full = CacheGroup(name="full", planes=(K,))
    window = CacheGroup(name="near", kind="window", planes=(K,))
    with pytest.raises(UnsupportedGroup, match=r"'near'.*'window'") as caught:
        KVCache((window,), num_blocks=4)
    assert (caught.value.name, caught.value.kind) == ("near", "window")
    with pytest.raises(UnsupportedGroup, match="other"):
        KVCache((full, CacheGroup(name="other", planes=(K,))), num_blocks=4)
    with pytest.raises(ValueError, match="group"):
        KVCache((), num_blocks=4)
