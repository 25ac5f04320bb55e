"""Conversations that branch anywhere, are repeated and continue: every hit has the right content.

Programs of one growing chain do not reach the case in which a block in the middle is computed again
while it has indexed children.
"""

import random

import numpy as np
import pytest

from openinfer_kv_cache import (
    CacheGroup,
    FrequencyEviction,
    KVCache,
    Plane,
    PriorityEviction,
)
from openinfer_kv_cache.pool import _runs

EVICTIONS = {
    "lru": None,
    "lfu": lambda: FrequencyEviction(lambda: 0.0),
    "priority": lambda: PriorityEviction(lambda: 0.0),
}


class Talks:
    """A cache and the content of its blocks: for each block, the tokens up to its end."""

    def __init__(self, num_blocks, size, eviction=None):
        plane = Plane(name="kv", bytes_per_token=64)
        group = CacheGroup(name="full", tokens_per_block=size, planes=(plane,))
        self.cache = KVCache((group,), num_blocks=num_blocks, eviction=eviction)
        self.size, self.step, self.num_hits = size, 0, 0
        self.contents = {}
        self.open = []

    def turn(self, prompt, output, max_tokens=None, keeps_open=False):
        """Runs a prompt with its output; returns all tokens, or None if there is no room."""
        self.step += 1
        self.cache.begin_step(self.step)
        keys = self.cache.keys(np.array(prompt, np.uint32))
        hit = self.cache.match(keys, max_tokens=max_tokens)
        for index, block in enumerate(hit.block_ids[0].tolist()):
            end = (index + 1) * self.size
            assert self.contents[block] == tuple(prompt[:end]), "a hit on another's block"
        self.num_hits += hit.num_tokens > 0
        num_cached = hit.num_tokens
        sequence = self.cache.open(keys, hit)
        num_forwarded = len(prompt) + len(output) - 1
        room = sequence.try_schedule(num_forwarded)
        self.cache.complete_step(self.step)
        if room is None:
            sequence.close(in_flight_until=None)
            return None
        tokens = [*prompt, *output]
        blocks = sequence.block_ids[0].tolist()
        for index in range(num_cached // self.size, -(-num_forwarded // self.size)):
            # The last block must not be shared before it is full.
            self.contents[blocks[index]] = tuple(tokens[: (index + 1) * self.size])
        sequence.apply(num_forwarded, np.array(output, np.uint32))
        if keeps_open:
            self.open.append(sequence)
        else:
            sequence.close(in_flight_until=None)
        return tokens


def test_a_repeated_prompt_of_whole_blocks_continues_in_two_ways():
    talks = Talks(400, 16)
    prompt = list(range(160))
    first = talks.turn(prompt, [1000 + i for i in range(33)])
    talks.turn(prompt, [2000 + i for i in range(33)])
    for turn in range(3):
        first = talks.turn([*first, *range(5000, 5040)], [turn] * 20)
    assert talks.num_hits == 4


def run_programs(num, eviction=None):
    num_hits = 0
    for seed in range(num):
        rng = random.Random(seed)
        talks = Talks(rng.choice((8, 14, 30)), rng.choice((1, 1, 2)), eviction)
        runs = talks.cache._space.pools[0]._runs
        runs.min_blocks, runs.max_spare = rng.choice((1, 2, 3)), rng.choice((2, 8, 64))
        said = []
        for _ in range(40):
            if rng.random() < 0.03:
                talks.cache.reset()
            known = rng.choice(said) if said and rng.random() < 0.8 else []
            prompt = known[: rng.randrange(len(known) + 1)]
            prompt += [rng.randrange(2) for _ in range(rng.randrange(not prompt, 4))]
            output = [rng.randrange(2) for _ in range(rng.randrange(1, 4))]
            tokens = talks.turn(
                prompt,
                output,
                max_tokens=0 if rng.random() < 0.1 else None,
                keeps_open=rng.random() < 0.3,
            )
            if tokens is not None:
                said.append(tokens)
            if talks.open and (tokens is None or rng.random() < 0.5):
                talks.open.pop(rng.randrange(len(talks.open))).close(in_flight_until=None)
        for sequence in talks.open:
            sequence.close(in_flight_until=None)
        talks.cache.assert_idle()
        num_hits += talks.num_hits
    assert num_hits > 5 * num


@pytest.mark.parametrize("name", EVICTIONS)
def test_every_hit_has_the_right_content(name):
    run_programs(80, EVICTIONS[name])


def test_programs_catch_a_place_that_outlived_its_run(monkeypatch):
    def unguarded(self, block):
        place = int(self._places[block])
        run = self._runs.get(place - place % _runs._MAX_BLOCKS)
        if run is None:
            return None
        behind = place - run.first_place + 1
        if behind < len(run.ids):
            if self._places[run.ids[behind]] == place + 1:
                return None
            self._num_entries -= len(run.ids) - behind
            run.ids = run.ids[:behind]
            del run.keys[behind:]
        return run

    monkeypatch.setattr(_runs.ChainRuns, "_ending_in", unguarded)
    with pytest.raises(AssertionError):
        run_programs(80)
