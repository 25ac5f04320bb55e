"""Orders that a policy keeps from plan to plan equal those computed from scratch."""

import gc
import random
from types import SimpleNamespace

import numpy as np
import pytest

from openinfer_contract import GenerateRequest, StopRules, pack_ids
from openinfer_kv_cache import CacheGroup, KVCache, Plane
from openinfer_scheduler import (
    Fair,
    LongestPrefixMatch,
    Priority,
    Scheduler,
    SchedulerConfig,
    ShortestPrefillFirst,
    StepResult,
)
from openinfer_scheduler.policies._ranking import NUM_REREAD, Ranking
from openinfer_scheduler.state._sequence import SequenceState, SlotTenancy
from openinfer_scheduler.state._waiting_queue import WaitingQueue

POLICIES = {
    "priority": Priority,
    "longest-prefix-match": LongestPrefixMatch,
    "shortest-prefill-first": ShortestPrefillFirst,
    "fair": Fair,
}


def waiting(rng, index):
    """Returns an object with the attributes that policies read of a sequence."""
    request = SimpleNamespace(
        priority=rng.randrange(3), tenant=rng.choice("abc"), session_id=rng.choice("xyz")
    )
    return SimpleNamespace(
        arrival_index=index,
        arrival=float(index),
        num_known_tokens=3,
        num_hit_tokens=rng.randrange(5),
        num_uncached_tokens=rng.randrange(1, 9),
        is_running=False,
        request=request,
    )


def changing_queues(rng, num=300):
    """Yields a queue that sequences join, leave and join again, and every sequence that ever
    left."""
    queue, gone, num_added = WaitingQueue(), [], 0
    for _ in range(num):
        for _ in range(rng.randrange(4)):
            queue.push(waiting(rng, num_added))
            num_added += 1
        for _ in range(rng.randrange(4)):
            if queue.sequences:
                gone.append(rng.choice(queue.sequences))
                queue.remove(gone[-1])
        if gone and rng.random() < 0.4:
            back = gone.pop(rng.randrange(len(gone)))
            back.num_uncached_tokens += 3
            queue.push(back)
        yield queue, gone


@pytest.mark.parametrize("luck", range(4))
@pytest.mark.parametrize("name", POLICIES)
def test_a_kept_order_equals_one_computed_anew(luck, name):
    rng = random.Random(luck)
    kept, anew = POLICIES[name](), POLICIES[name]()
    num_compared = 0
    for queue, gone in changing_queues(rng):
        if rng.random() < 0.3 or not queue.sequences:
            continue  # the policy is not asked
        for sequence in rng.sample(gone, min(2, len(gone))):
            if name == "fair":
                num_tokens = rng.randrange(9)
                kept.charge(sequence, num_tokens)
                anew.charge(sequence, num_tokens)
        expected = list(anew.order(list(queue.sequences), 0.0))
        assert list(kept.order(queue.snapshot(), 0.0)) == expected
        num_compared += 1
    assert num_compared > 150


def test_an_overdue_sequence_is_ranked_once():
    rng = random.Random(0)
    for policy in (LongestPrefixMatch(5.0), ShortestPrefillFirst(5.0)):
        for queue, _ in changing_queues(rng):
            for now in (0.0, 60.0, 1e4):
                found = list(policy.order(queue.snapshot(), now))
                assert sorted(s.arrival_index for s in found) == [
                    s.arrival_index for s in queue.sequences
                ]
                overdue = [s for s in queue.sequences if s.arrival <= now - 5.0]
                assert found[: len(overdue)] == overdue


def test_keys_that_change_are_read_in_turn_and_where_they_matter():
    queue = WaitingQueue()
    sequences = [waiting(random.Random(0), index) for index in range(4 * NUM_REREAD)]
    for number, sequence in enumerate(sequences):
        sequence.key = number
        queue.push(sequence)
    reads = []

    def key(sequence):
        reads.append(sequence)
        return sequence.key

    ranking = Ranking(key)
    assert next(ranking.order(queue.snapshot())) is sequences[0]
    sequences[0].key = 1e9
    reads.clear()
    assert next(ranking.order(queue.snapshot())) is sequences[1], "the key has grown"
    assert len(reads) <= NUM_REREAD + 2
    sequences[-1].key = -1
    for _ in range(4):
        first = next(ranking.order(queue.snapshot()))
    assert first is sequences[-1], "by now every key was read again"
    assert list(ranking.order(queue.snapshot()))[-1] is sequences[0]


def kept(prefix):
    """Returns ids of requests with this prefix that are still referenced."""
    gc.collect()
    # Compared by type: `isinstance` reads `__class__` of every object, and some warn at that.
    found = [each for each in gc.get_objects() if type(each) in (SequenceState, SlotTenancy)]
    return {each.request_id for each in found if each.request_id.startswith(prefix)}


@pytest.mark.long
@pytest.mark.parametrize("name", ["fcfs", *POLICIES])
def test_ten_thousand_requests_leave_no_reference(name):
    group = CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=1),))
    config = SchedulerConfig(max_model_len=64, max_num_seqs=64, max_num_batched_tokens=256)
    policy = POLICIES[name]() if name in POLICIES else None
    scheduler = Scheduler(config, KVCache((group,), num_blocks=400), policy)
    in_flight = []

    def complete():
        plan = in_flight.pop(0)
        counts = np.array([row.is_sampled for row in plan.rows], np.int32)
        tokens = np.full(counts.sum(), 7, np.uint32)
        result = StepResult(step_id=plan.step_id, counts=counts, token_ids=tokens)
        scheduler.apply(result, 0.0)

    def step():
        while (plan := scheduler.plan(0.0)) is not None:
            in_flight.append(plan)
        complete()

    num_added = 0
    while num_added < 10_000 or scheduler.has_work:
        while num_added < 10_000 and scheduler.load().num_waiting < 100:
            request = GenerateRequest(
                request_id=f"{name} {num_added}",
                prompt_token_ids=pack_ids([num_added % 9] * 3),
                stop=StopRules(max_tokens=1 + num_added % 2),
                deadline=1e9 + num_added,
                priority=num_added % 3,
                tenant=str(num_added % 5),
            )
            assert scheduler.add(request, 0.0) is None
            num_added += 1
            if num_added % 10 == 0:
                scheduler.abort([f"{name} {num_added - 2}"], 0.0)
        step()
    # Some requests decode to their end, and the last waiting ones are aborted, after which there is
    # no plan.
    for number in range(100):
        request = GenerateRequest(
            request_id=f"{name} last {number}",
            prompt_token_ids=pack_ids([number]),
            stop=StopRules(max_tokens=40),
            deadline=1e9,
        )
        scheduler.add(request, 0.0)
    for _ in range(20):
        step()
    assert len(kept(f"{name} ")) == 100
    scheduler.abort_all(0.0)
    while in_flight:
        complete()
    assert not kept(f"{name} ")
