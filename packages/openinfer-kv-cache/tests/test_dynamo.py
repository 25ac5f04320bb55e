import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openinfer_kv_cache import BlockKeys
from openinfer_kv_cache.events._dynamo import root_hash, sequence_hashes


def column(tokens):
    return np.array(list(tokens), "<u4").tobytes()


def test_published_vectors():
    assert sequence_hashes(column([1, 2, 3, 4]), 4) == [14643705804678351452]
    assert sequence_hashes(column(range(1, 9)), 4)[1] == 4945711292740353085


@given(st.integers(1, 4), st.lists(st.integers(0, 2**32 - 1), max_size=24), st.integers(0, 24))
def test_a_chain_of_hashes_continues_where_it_stopped(size, tokens, split):
    tokens = tokens[: len(tokens) // size * size]
    split = min(split // size * size, len(tokens))
    head = sequence_hashes(column(tokens[:split]), size)
    tail = sequence_hashes(column(tokens[split:]), size, head[-1] if head else None)
    assert head + tail == sequence_hashes(column(tokens), size)


def test_adapter_and_salt_hash_apart():
    seeds = [{}, {"salt": b"ab"}, {"adapter_uid": b"ab"}, {"adapter_uid": b"a", "salt": b"b"}]
    roots = [root_hash(BlockKeys(4, **seed).seed) for seed in seeds]
    assert roots[0] is None
    hashes = {sequence_hashes(column([1, 2, 3, 4]), 4, root)[0] for root in roots}
    assert len(hashes) == len(seeds)
