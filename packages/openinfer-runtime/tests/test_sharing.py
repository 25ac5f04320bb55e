"""Groups of rows that share blocks, found from plans."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from openinfer_runtime.steps._prefix_groups import PrefixGroups, PrefixInput, SharingThresholds

BLOCK_SIZE = 4
THRESHOLDS = SharingThresholds(min_rows=3, min_tokens=2 * BLOCK_SIZE, min_saved_tokens=16)


class Rows:
    """Block tables as the runtime keeps them, and plans over them."""

    def __init__(self, num_slots=12, thresholds=THRESHOLDS):
        self.tables = np.zeros((num_slots, 600), np.int32)
        self.num_blocks = np.zeros(num_slots, np.int64)
        self.groups = PrefixGroups(self.tables, self.num_blocks, BLOCK_SIZE, thresholds)
        self.fresh = iter(range(1000, 100_000))

    def start(self, slots, *shared, num_own=2, has_hit=True):
        """Starts slots whose tables begin with shared blocks, followed by blocks of their own."""
        starts = []
        for slot in slots:
            blocks = [*shared, *(next(self.fresh) for _ in range(num_own))]
            self.tables[slot, : len(blocks)] = blocks
            self.num_blocks[slot] = len(blocks)
            cached = len(shared) * BLOCK_SIZE if has_hit else 0
            starts.append(SimpleNamespace(slot=slot, num_cached_tokens=cached))
        assert self.of(slots, starts=starts) == {}

    def of(self, slots, *, starts=(), ends=(), num_tokens=None):
        """Returns the number of shared blocks of each group, by the group's sorted slots."""
        token_ids = None if num_tokens is None else [0]
        plan = SimpleNamespace(
            rows=[SimpleNamespace(slot=slot, token_ids=token_ids) for slot in slots],
            num_tokens=len(slots) if num_tokens is None else num_tokens,
            starts=starts,
            ends=ends,
        )
        self.last = self.groups.of(plan)
        return {
            tuple(sorted(slots[row] for row in group.members)): group.num_tokens // BLOCK_SIZE
            for group in self.last
        }


def test_rows_with_the_same_leading_blocks():
    rows = Rows()
    rows.start([0], 7, 8, 9, has_hit=False)
    assert rows.of([0]) == {}
    rows.start([1, 2, 5], 7, 8, 9)
    assert rows.of([0, 1, 2, 5]) == {(0, 1, 2, 5): 3}
    assert rows.of([5, 3, 0, 1]) == {(0, 1, 5): 3}
    assert rows.of([0, 1]) == {}


def test_several_groups_best_first_and_rows_that_are_alone():
    rows = Rows()
    rows.start([0, 4, 8], 1, 2)
    rows.start([1, 5, 9, 10], 20, 21, 22, 23)
    rows.start([2, 3], 40, 41, 42)
    rows.start([6, 7], has_hit=False)
    assert rows.of(range(11)) == {(1, 5, 9, 10): 4, (0, 4, 8): 2}
    assert [group.num_tokens for group in rows.last] == [16, 8]


def test_who_shares_more_is_a_group_where_that_saves_more():
    rows = Rows()
    rows.start([0, 1, 2], 1, 2)
    rows.start([3, 4, 5], 1, 2, *range(30, 40))
    assert rows.of(range(6)) == {(3, 4, 5): 12, (0, 1, 2): 2}
    rows.start([0, 1, 2], 1, 2, 3, 4)
    rows.start([3, 4, 5], 1, 2, 3, 4, 5)
    assert rows.of(range(6)) == {tuple(range(6)): 4}
    # Too few are left to share what all do.
    rows.start([0, 1], 1, 2, 3, 4)
    rows.start([2, 3, 4, 5], 1, 2, 3, 4, *range(50, 90))
    assert rows.of(range(6)) == {(2, 3, 4, 5): 44}


def test_long_tables_are_compared_to_where_they_part():
    rows = Rows(thresholds=THRESHOLDS)
    rows.start([0, 1, 2], *range(1, 500), num_own=40)
    assert rows.of([0, 1, 2]) == {(0, 1, 2): 499}


def test_the_block_that_is_written_to_is_not_shared():
    rows = Rows()
    rows.start([0, 1, 2], 1, 2, 3, num_own=0)
    assert rows.of([0, 1, 2]) == {(0, 1, 2): 2}


@pytest.mark.parametrize(
    ("shared", "slots"),
    [((1,), [0, 1, 2, 3]), ((1, 2, 3), [0, 1]), ((1, 2, 3, 4), [0, 1, 2])],
    ids=["too-short", "too-few", "too-little"],
)
def test_what_is_not_worth_it_is_no_group(shared, slots):
    rows = Rows(thresholds=SharingThresholds(min_rows=3, min_tokens=8, min_saved_tokens=33))
    rows.start(slots, *shared)
    assert rows.of(slots) == {}


def test_groups_follow_rows_that_come_and_go():
    rows = Rows()
    rows.start([0, 1, 2, 3], 1, 2, 3)
    assert rows.of([0, 1, 2, 3]) == {(0, 1, 2, 3): 3}
    kept = rows.last
    rows.of([0, 1, 2, 3])
    assert rows.last is kept
    assert rows.of([0, 1, 2], ends=(3,)) == {(0, 1, 2): 3}
    rows.start([2], 90, 91, 92)
    assert rows.of([0, 1, 2]) == {}
    rows.start([3], 1, 2, 3)
    assert rows.of([0, 1, 2, 3]) == {(0, 1, 3): 3}
    assert rows.of([0, 1, 2, 3], num_tokens=20) == {}
    assert rows.of([0, 1, 2, 3]) == {(0, 1, 3): 3}


def test_tables_are_not_read_without_hits():
    rows = Rows()
    rows.start([0, 1, 2, 3], has_hit=False)
    rows.groups._tables = None
    assert rows.of([0, 1, 2, 3]) == {}


def test_groups_of_a_shape_lie_where_they_lay():
    rows = Rows()
    rows.start([0, 1, 2], 1, 2, 3)
    rows.of([0, 1, 2])
    step = PrefixInput(8, 2, torch.device("cpu"))
    place = step.shared.units.data_ptr()
    step.fill(rows.last)
    assert step.shared.rows[:, 0].tolist() == [12, 12, 12, 0, 0, 0, 0, 0]
    step.fill(())
    assert not step.shared.rows.any()
    assert not step.shared.units.any()
    assert step.shared.units.data_ptr() == place


def nested_rows(num_rows, lengths):
    """Rows that share these numbers of blocks of one document, with default thresholds."""
    tables = np.zeros((num_rows, max(lengths) + 2), np.int32)
    for row, length in enumerate(lengths):
        tables[row, :length] = np.arange(1, length + 1)
        tables[row, length:] = 1_000_000 + row
    num_blocks = np.array(lengths) + 1
    return tables, PrefixGroups(tables, num_blocks, 16, SharingThresholds())


def plan_of(slots):
    rows = [SimpleNamespace(slot=slot, token_ids=None) for slot in slots]
    return SimpleNamespace(rows=rows, num_tokens=len(rows), starts=(), ends=())


def found(groups, slots):
    """Finds groups again; returns them and the seconds it took."""
    starts = [SimpleNamespace(slot=slot, num_cached_tokens=512) for slot in slots]
    groups.of(SimpleNamespace(starts=starts, ends=()))
    begin = time.process_time()
    result = groups.of(plan_of(slots))
    return result, time.process_time() - begin


@pytest.mark.timed
@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.parametrize(("num_rows", "bound"), [(256, 1e-3), (512, 2e-3)])
def test_rows_that_share_ever_more_are_grouped_in_bounded_time(num_rows, bound, step):
    lengths = [32 + step * each for each in range(num_rows)]
    np.random.default_rng(0).shuffle(lengths)
    tables, groups = nested_rows(num_rows, lengths)
    slots = list(range(num_rows))
    results = [found(groups, slots) for _ in range(25)]
    assert min(seconds for _, seconds in results) < bound
    result = results[0][0]
    assert_groups_share(tables, np.array(lengths), 16, result)
    # A single group of the longest half would save this much.
    half = sorted(lengths)[num_rows // 2]
    assert saved(result) > (num_rows // 2 - 1) * half * 16


def saved(groups):
    return sum((len(group.members) - 1) * group.num_tokens for group in groups)


def assert_groups_share(tables, shareable, block_size, groups):
    """Asserts that groups are disjoint and share exactly the blocks that their rows share."""
    members = np.concatenate([group.members for group in groups])
    assert len(set(members.tolist())) == len(members)
    for group in groups:
        end = group.num_tokens // block_size
        assert (tables[group.members, :end] == tables[group.members[0], :end]).all()
        assert (shareable[group.members] >= end).all()


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_any_rows_share_their_blocks(seed):
    # A tree of prefixes: rows with the same block have the same blocks before it.
    rng = np.random.default_rng(seed)
    thresholds = SharingThresholds(min_rows=3, min_tokens=8, min_saved_tokens=0)
    rows = Rows(num_slots=120, thresholds=thresholds)
    prefixes = [list(range(1, 6))]
    for node in range(12):
        parent = prefixes[rng.integers(len(prefixes))]
        kept = parent[: rng.integers(1, len(parent) + 1)]
        prefixes.append([*kept, *range(100 * node + 100, 100 * node + 100 + rng.integers(1, 40))])
    for slot in range(120):
        rows.start([slot], *prefixes[rng.integers(len(prefixes))], num_own=int(rng.integers(1, 90)))
    rows.of(range(120))
    assert rows.last
    assert len(rows.last) <= 8
    assert all(len(group.members) >= 3 for group in rows.last)
    assert_groups_share(rows.tables, rows.num_blocks - 1, BLOCK_SIZE, rows.last)
