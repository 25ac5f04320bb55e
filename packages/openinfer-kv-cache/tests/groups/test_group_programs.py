"""Random programs over four groups in one arena keep the rules."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_kv_cache import EvictionRank

NUMBER = st.integers(0, 63)
PROGRAMS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=80)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(program=PROGRAMS, num_slabs=st.sampled_from([8, 14, 40]))
def test_programs_keep_the_rules(grouped_world, program, num_slabs):
    grouped_world(num_slabs).run(program)


@pytest.mark.long
def test_long_random_programs_keep_the_rules(run_group_programs):
    run_group_programs(120)


class AnyOrder:
    """An eviction policy with random ranks."""

    def __init__(self):
        self.random = random.Random(3)

    def clock(self):
        return 0.0

    def attach(self, num_blocks, /):
        pass

    def stored(self, block_ids, /):
        pass

    def used(self, block_ids, use, /):
        pass

    def rank(self, block_id, /):
        return EvictionRank((self.random.choice([math.nan, math.inf, 0.0, self.random.random()]),))


def test_no_policy_of_eviction_breaks_the_rules(grouped_world, group_programs):
    for seed, program in enumerate(group_programs(30)):
        grouped_world([8, 14, 40][seed % 3], eviction=AnyOrder).run(program)
