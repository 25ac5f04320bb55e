"""Requests that load from a tier: correct tokens, no leaked block, no starvation."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from openinfer_kv_cache.tiers import MemoryTier, TierLoads, TierSaves
from openinfer_scheduler import FCFS, Fair, LongestPrefixMatch, Priority, ShortestPrefillFirst

POLICIES = (FCFS, Fair, LongestPrefixMatch, Priority, ShortestPrefillFirst)


class Failing:
    """A transfer that writes garbage and fails."""

    def __init__(self, transfer, memory, block_ids):
        self.transfer, self.memory, self.block_ids = transfer, memory, block_ids
        self.error = None

    def poll(self):
        is_over = self.transfer.poll()
        if is_over:
            self.error = "the disk is full"
            self.memory[self.block_ids] = 13
        return is_over


class Tiered:
    """A loop that saves finished and preempted sequences and loads for new requests."""

    def __init__(self, loop, rng, *, failing=0.0, **options):
        self.rng = rng
        self.failing = failing
        self.subject = loop(rng=rng, closing=self.save, **options)
        content = self.subject.executor.memory
        self.tier = MemoryTier(
            SimpleNamespace(
                read=lambda block: content[block].tobytes(),
                write=lambda block, data: content.__setitem__(
                    block, np.frombuffer(data, np.uint64)
                ),
            ),
            max_blocks=60,
            num_polls=3,
        )
        scheduler, cache = self.subject.scheduler, self.subject.cache
        self.loads = TierLoads(
            cache, [self], num_entitled_blocks=lambda: scheduler.num_entitled_blocks
        )
        self.saves = TierSaves(cache, [self.tier])
        self.waiting = []
        self.num_loads = 0

    name = "host"

    def resolve(self, span):
        """Loads from the tier; some transfers fail."""
        hit = self.tier.resolve(span)
        if hit is None or self.rng.random() >= self.failing:
            return hit
        content = self.subject.executor.memory

        def load(block_ids):
            return Failing(hit.load(block_ids), content, block_ids)

        return SimpleNamespace(
            num_blocks=hit.num_blocks, token_ids=hit.token_ids, load=load, close=hit.close
        )

    def save(self, sequence):
        self.saves.seal(sequence, 0)

    def add(self, prompt, **fields):
        subject = self.subject
        keys = subject.cache.keys(np.array(prompt, np.uint32))
        entitled = subject.scheduler.num_entitled_blocks
        load = self.loads.resolve(keys, deadline=subject.now + self.rng.choice((0.001, 9.0)))
        if load is not None:
            self.num_loads += 1
            assert subject.cache.num_available_blocks >= entitled, "a load took what is promised"
        request_id = subject.add(prompt, is_loading=load is not None, **fields)
        if load is not None:
            self.waiting.append((load, request_id))

    def poll(self):
        released = self.loads.poll(self.subject.now)
        self.saves.poll()
        self.subject.loaded(*(name for load, name in self.waiting if load in released))
        self.waiting = [(load, name) for load, name in self.waiting if load not in released]

    def step(self):
        self.subject.step()
        self.poll()

    def finish(self):
        for _ in range(3000):
            if not self.subject.scheduler.has_work:
                break
            self.step()
        while self.loads.num_pending or self.saves.num_pinned_blocks:
            self.poll()
        assert self.subject.cache.num_tier_blocks == 0
        self.subject.run()


def crowd(loop, rng, policy, admission):
    tiered = Tiered(
        loop,
        rng,
        failing=0.2,
        policy=policy(),
        num_blocks=rng.choice((13, 16, 24)),
        tokens_per_block=2,
        max_model_len=24,
        max_num_seqs=rng.choice((3, 6)),
        max_num_batched_tokens=rng.choice((8, 30)),
        depth=rng.choice((1, 2, 3)),
        admission=admission,
    )
    for _ in range(60):
        prompt = [rng.randrange(2)] * rng.randrange(4, 12) + [rng.randrange(3)]
        tiered.add(prompt, max_tokens=rng.randrange(1, 10), tenant=rng.choice("ab"))
        for _ in range(rng.randrange(4)):
            tiered.step()
        if rng.random() < 0.1:
            tiered.subject.scheduler.reset_prefix_cache()
    tiered.finish()
    return tiered


@pytest.mark.parametrize("admission", ["optimistic", "lifetime"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_crowd_over_a_tier(loop, policy, admission):
    crowds = [crowd(loop, random.Random(luck), policy, admission) for luck in range(4)]
    loads = [tiered.loads for tiered in crowds]
    assert sum(each.num_loaded_tokens["host"] for each in loads) > 40
    assert sum(each.num_failed for each in loads) > 2
    assert sum(each.num_late for each in loads) > 2
    assert sum(each.num_refused for each in loads) > 2
    num_preemptions = sum(each.subject.scheduler.load().num_preemptions for each in crowds)
    assert (num_preemptions == 0) == (admission == "lifetime"), "loads cause no preemption"


def long_running(loop, admission):
    """Returns a loop with a request that needs 12 of 16 blocks, and a full tier."""
    tiered = Tiered(
        loop, random.Random(1), num_blocks=16, tokens_per_block=2, max_model_len=24, seed=0,
        admission=admission,
    )  # fmt: skip
    tiered.add([*range(16), 30], max_tokens=1)
    tiered.finish()
    tiered.subject.scheduler.reset_prefix_cache()
    tiered.subject.add([20, 21], max_tokens=22, ignore_eos=True)
    tiered.step()
    return tiered


def test_a_load_leaves_blocks_for_the_lifetime_of_admitted_requests(loop):
    tiered = long_running(loop, "lifetime")
    assert tiered.subject.scheduler.num_entitled_blocks == 10
    tiered.add([*range(16), 31], max_tokens=1)
    assert (tiered.num_loads, tiered.loads.num_refused) == (1, 1)
    assert tiered.subject.cache.num_available_blocks == 10
    tiered.finish()
    assert tiered.subject.scheduler.load().num_preemptions == 0


def test_a_load_leaves_blocks_for_the_next_tokens_of_admitted_requests(loop):
    tiered = long_running(loop, "optimistic")
    assert tiered.subject.scheduler.num_entitled_blocks <= 1
    tiered.add([*range(16), 31], max_tokens=1)
    assert (tiered.num_loads, tiered.loads.num_refused) == (1, 0)
    assert tiered.subject.cache.num_available_blocks > 1
    tiered.finish()


def test_a_load_leaves_the_watermark_free(loop):
    subject = loop(num_blocks=10, watermark=0.4)
    assert subject.scheduler.num_entitled_blocks == 4
    subject.add([1] * 19, max_tokens=1)
    subject.plan()
    assert subject.scheduler.num_entitled_blocks == 4 + 1, "and the block of its last tokens"
    subject.run()


def test_a_sequence_short_of_blocks_waits_for_copies_that_hold_some(loop):
    """The request runs alone, and copies to the tier hold all other blocks; it is not preempted."""
    tiered = long_running(loop, "optimistic")
    tiered.add([*range(16), 31], max_tokens=1)
    held = tiered.subject.cache.num_tier_blocks
    assert held == 8
    while tiered.subject.in_flight or tiered.subject.plan() is not None:
        tiered.subject.complete()
    load = tiered.subject.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_preemptions) == (1, 1, 0)
    tiered.finish()
    assert tiered.subject.scheduler.load().num_preemptions == 0


def test_tokens_loaded_from_the_tier_are_not_forwarded(loop):
    tiered = Tiered(loop, random.Random(0), max_num_batched_tokens=40)
    tiered.add(range(20), max_tokens=2)
    tiered.finish()
    tiered.subject.scheduler.reset_prefix_cache()
    tiered.add([*range(20), 9], max_tokens=2)
    assert tiered.subject.plan() is None, "it waits for the tier"
    tiered.finish()
    assert tiered.subject.ends["r1"].cached == (("host", 20),), "a tier had it"
    group = next(g for g in tiered.subject.scheduler.load().cache_groups if g.tier == "host")
    assert group.num_hit_tokens == 20
    tiered.add([*range(20), 8], max_tokens=2)
    tiered.finish()
    assert tiered.subject.ends["r2"].cached == (("device", 20),), "now the device has it"
