"""Simultaneous requests with a common prefix cost one prefill."""

import numpy as np
import pytest

from openinfer_kv_cache import CacheGroup, KVCache, Plane

PROMPT = np.random.default_rng(0).integers(0, 1000, 4096, dtype=np.uint32)


def one_group():
    group = CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=64),))
    return KVCache((group,), num_blocks=1000)


@pytest.fixture(params=["one group", "states", "windows"])
def cache(request):
    if request.param == "one group":
        return one_group()
    if request.param == "states":
        return KVCache(request.getfixturevalue("qwen35"), num_slabs=40)
    return KVCache(request.getfixturevalue("deepseek_v4"), num_slabs=100)


class Prefills:
    """Admits requests without a leader and forwards chunks; counts forwarded tokens."""

    def __init__(self, cache, budget=1024, depth=2):
        self.cache, self.budget, self.depth = cache, budget, depth
        self.step = self.num_forwarded = 0
        self.running = []
        self.in_flight = []

    def run(self, waiting, abort_at=None):
        waiting = list(waiting)
        while waiting or self.running:
            self.plan(waiting)
            if self.step == abort_at:
                self.running.pop(0)[0].close(in_flight_until=self.step)
            if len(self.in_flight) == self.depth or not (waiting or self.running):
                self.cache.complete_step(self.in_flight.pop(0))
            assert self.step < 100
        while self.in_flight:
            self.cache.complete_step(self.in_flight.pop(0))
        self.cache.assert_idle()

    def plan(self, waiting):
        cache = self.cache
        self.step += 1
        cache.begin_step(self.step)
        self.in_flight.append(self.step)
        budget = self.budget
        for row in list(self.running):
            budget -= self.forward(row, budget)
        for keys in list(waiting):
            if budget <= 0:
                return
            hit = cache.match(keys)
            if cache.leader_block(keys, hit.num_tokens):
                hit.close()
                continue
            waiting.remove(keys)
            sequence = cache.open(keys, hit)
            row = [sequence, sequence.num_cached_tokens]
            self.running.append(row)
            budget -= self.forward(row, budget)

    def forward(self, row, budget):
        sequence, position = row
        known = sequence.keys.num_tokens
        end = self.cache.chunk_end(sequence.keys, position, min(known, position + budget))
        if end > position:
            assert sequence.try_schedule(end) is not None
            self.num_forwarded += end - position
        row[1] = end
        if end == known:
            self.running.remove(row)
            sequence.close(in_flight_until=self.step)
        return end - position


def test_eight_requests_on_a_cold_prompt_cost_one_prefill(cache):
    prefills = Prefills(cache)
    prefills.run(cache.keys(PROMPT) for _ in range(8))
    tail = len(PROMPT) - cache.peek(cache.keys(PROMPT))
    assert 0 < tail <= 128
    assert prefills.num_forwarded == len(PROMPT) + 7 * tail


def test_latecomers_and_shared_prefixes_wait_for_what_they_share(cache):
    prefills = Prefills(cache)
    hint = np.array([2048], np.uint32)
    prompts = [np.concatenate((PROMPT[:2048], np.full(300, i, np.uint32))) for i in range(4)]
    prefills.run(cache.keys(prompt, boundaries=hint) for prompt in prompts)
    assert prefills.num_forwarded == 2048 + 4 * 300


def test_a_follower_takes_over_from_a_leader_that_ends(cache):
    prefills = Prefills(cache)
    prefills.run([cache.keys(PROMPT) for _ in range(3)], abort_at=2)
    tail = len(PROMPT) - cache.peek(cache.keys(PROMPT))
    assert prefills.num_forwarded <= 2 * len(PROMPT) + tail
    assert prefills.num_forwarded > len(PROMPT)


def test_no_request_waits_for_a_block_that_is_never_computed():
    cache = one_group()
    keys = cache.keys(PROMPT[:100])
    cache.begin_step(1)
    private = cache.open(keys, is_cacheable=False)
    hit = cache.match(keys)
    assert not cache.leader_block(keys, hit.num_tokens), "it will not share"
    leader = cache.open(keys)
    assert cache.leader_block(keys, hit.num_tokens)
    other = cache.keys(PROMPT[1:100])
    assert not cache.leader_block(other, hit.num_tokens), "another prefix"
    short = cache.keys(PROMPT[:16])
    assert not cache.leader_block(short, hit.num_tokens), "its last token is computed in any case"
    salted = cache.keys(PROMPT[:100], salt=b"s")
    assert not cache.leader_block(salted, hit.num_tokens)
    assert leader.try_schedule(100) is not None
    assert cache.leader_block(keys, hit.num_tokens), "sealed in this very step"
    cache.begin_step(2)
    hit.close()
    hit = cache.match(keys)
    assert hit.num_tokens == 96
    assert not cache.leader_block(keys, hit.num_tokens)
    hit.close()
    for sequence in (private, leader):
        sequence.close(in_flight_until=2)
    cache.complete_step(1)
    cache.complete_step(2)
    cache.assert_idle()


def test_after_a_reset_sequences_opened_before_are_no_leaders():
    cache = one_group()
    keys = cache.keys(PROMPT[:100])
    sequence = cache.open(keys)
    cache.reset()
    hit = cache.match(keys)
    assert not cache.leader_block(keys, hit.num_tokens)
    hit.close()
    sequence.close(in_flight_until=None)
    cache.assert_idle()


def test_without_a_prefix_cache_there_are_no_leaders():
    group = CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=64),))
    cache = KVCache((group,), num_blocks=10, has_prefix_cache=False)
    keys = cache.keys(PROMPT[:100])
    sequence, hit = cache.open(keys), cache.match(keys)
    assert not cache.leader_block(keys, hit.num_tokens)
    hit.close()
    sequence.close(in_flight_until=None)
