import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from openinfer_kv_cache import BlockKeys


def chain(tokens, size=4, **seed):
    keys = BlockKeys(size, **seed)
    keys.extend(np.array(tokens, np.uint32))
    return keys.slice(0, keys.num_blocks)


def test_the_key_recipe_is_fixed():
    first = xxh3_128_digest(np.array([1, 2, 3, 4], "<u4").tobytes())
    second = xxh3_128_digest(first + np.array([5, 6, 7, 8], "<u4").tobytes())
    assert chain(range(1, 11)) == [first, second]
    # The recipe must never change: keys outlive processes in tiers.
    assert first.hex() == "903ce79ac359c3eb2de5421794dd19f0"
    seeded = chain([1, 2, 3, 4], adapter_uid=b"adapter", salt=b"salt")
    assert seeded[0].hex() == "30c0c938a35bde1ceeeb282c6295683f"


def test_a_seed_moves_every_key_of_the_chain():
    tokens = list(range(12))
    chains = [
        chain(tokens),
        chain(tokens, salt=b"s"),
        chain(tokens, adapter_uid=b"a"),
        chain(tokens, adapter_uid=b"a", salt=b"s"),
    ]
    assert len({key for keys in chains for key in keys}) == 12


def test_token_ids_are_kept_on_demand():
    keys = BlockKeys(2, keeps_token_ids=True)
    keys.extend(np.array([1, 2, 3], np.uint32))
    keys.slice(0, 1)
    keys.extend(np.array([4, 5], np.uint32))
    assert np.frombuffer(keys.token_column(1, 2), "<u4").tolist() == [3, 4]
    assert keys.token_column(0, 2) == np.array([1, 2, 3, 4], "<u4").tobytes()
    with pytest.raises(ValueError, match="there are 2 blocks"):
        keys.token_column(1, 3)
    with pytest.raises(ValueError, match="not keep"):
        BlockKeys(2).token_column(0, 0)


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=9), max_size=6), st.integers(1, 5))
def test_extending_in_pieces_equals_extending_at_once(pieces, size):
    keys = BlockKeys(size)
    for i, piece in enumerate(pieces):
        ids = np.array(piece, np.uint32)
        keys.extend(ids.tobytes() if i % 2 else ids)
        keys.slice(0, keys.num_blocks // 2)
    tokens = [token for piece in pieces for token in piece]
    assert keys.num_tokens == len(tokens)
    assert keys.slice(0, keys.num_blocks) == chain(tokens, size)


def test_adapter_and_salt_are_not_confused():
    seeds = [{}, {"salt": b"ab"}, {"adapter_uid": b"ab"}, {"adapter_uid": b"a", "salt": b"b"}]
    assert len({chain([1, 2, 3, 4], **seed)[0] for seed in seeds}) == len(seeds)


def test_a_key_depends_on_all_tokens_before_it():
    assert chain([0, 0, 0, 0, 5, 6, 7, 8])[1] != chain([0, 0, 0, 1, 5, 6, 7, 8])[1]


def test_nonsense_is_refused():
    keys = BlockKeys(4)
    with pytest.raises(ValueError, match="uint32"):
        keys.extend(np.array([1, 2], np.int64))
    with pytest.raises(ValueError, match=r"got \[1, 2\] uint32"):
        keys.extend(np.array([[1, 2]], np.uint32))
    with pytest.raises(ValueError, match="got list"):
        keys.extend([1, 2])
    with pytest.raises(ValueError, match="u32"):
        keys.extend(b"abc")
    with pytest.raises(ValueError, match="blocks"):
        keys.slice(0, 1)
    with pytest.raises(ValueError, match="tokens_per_block"):
        BlockKeys(0)
