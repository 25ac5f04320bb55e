"""Runs of blocks: the prefixes that they find, and the number of their entries."""

import numpy as np

from openinfer_kv_cache.pool._runs import ChainRuns


def ids(*blocks):
    return np.array(blocks, np.int32)


def keys(text):
    """Returns the chain of a text: one key for each of its prefixes."""
    return [text[: end + 1].encode() for end in range(len(text))]


def runs():
    made = ChainRuns(32)
    made.min_blocks = 2
    made.add(ids(5, 3, 9), keys("abc"), None, 3)
    return made


def found(made, text, num=None):
    num = len(text) if num is None else num
    blocks = made.find(keys(text), num).tolist()
    return blocks if len(blocks) == num else None


def test_a_chain_that_continues_is_one_run():
    made = runs()
    made.add(ids(1), keys("abcd")[3:], 9, 4)
    assert len(made._runs) == 1
    assert found(made, "abcd") == [5, 3, 9, 1]
    assert found(made, "abcx", 3) == [5, 3, 9]
    assert found(made, "abcd", 2) == [5, 3]


def test_another_chain_branches_off():
    made = runs()
    made.add(ids(7, 8), keys("abxy")[2:], 3, 5)
    assert found(made, "abxy") == [5, 3, 7, 8]
    assert found(made, "abc") == [5, 3, 9]


def test_prefixes_shorter_than_a_run_are_not_found():
    made = runs()
    made.add(ids(7), keys("x"), None, 4)
    assert found(made, "x") is None
    assert found(made, "", 0) == []


def test_blocks_that_left_the_index_are_not_found_and_the_run_continues():
    made = runs()
    made.remove(ids(9))
    assert found(made, "abc") is None
    assert found(made, "ab") == [5, 3]
    made.add(ids(4), keys("abz")[2:], 3, 3)
    assert found(made, "abz") == [5, 3, 4]


def test_a_block_reused_elsewhere_in_its_run_is_not_found_at_its_old_place():
    made = runs()
    made.remove(ids(3))  # another block has taken its key
    made.add(ids(3), keys("abcd")[3:], 9, 4)
    assert found(made, "abcd") is None


def test_a_reset_removes_all_runs():
    made = runs()
    made.clear()
    assert found(made, "abc") is None
    assert made._num_entries == 0


def test_stale_entries_are_pruned_in_time():
    made = runs()
    made.max_spare = 8
    for number in range(200):
        text = f"{chr(200 + number)}bcd"
        made.add(ids(20, 21, 22, 23), keys(text), None, 7)
        assert found(made, text) == [20, 21, 22, 23]
        made.remove(ids(20, 21, 22, 23) if number % 2 else ids(22, 23))
        if not number % 2:
            made.remove(ids(20, 21))
        assert made._num_entries <= 2 * 7 + 8
    assert len(made._runs) < 8
    assert len(made._starts) < 8
    assert found(made, "abc") == [5, 3, 9]


def test_no_call_prunes_all_stale_entries_at_once():
    made, num_runs = ChainRuns(16 * 10_800 + 8), 10_800
    for number in range(num_runs):
        blocks = np.arange(16 * number, 16 * number + 16, dtype=np.int32)
        made.add(blocks, [b"%d-%d" % (number, at) for at in range(16)], None, 16 * num_runs)
        if number % 4:
            made.remove(blocks)
    num_indexed, made.max_spare, dropped = 4 * num_runs + 8, 0, []
    more = np.arange(16 * num_runs, 16 * num_runs + 8, dtype=np.int32)
    while made._num_entries > 2 * num_indexed:
        before = made._num_entries
        made.add(more, [b"%d %d" % (len(dropped), at) for at in range(8)], None, num_indexed)
        dropped.append(before + 8 - made._num_entries)
    assert max(dropped) <= 16 * 16, "a call drops a little"
    assert min(dropped) > 8, "and more than it adds"
