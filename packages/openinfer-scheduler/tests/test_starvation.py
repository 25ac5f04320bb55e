"""Waiting times while requests that the policy prefers keep arriving.

In every step, new requests arrive that the policy under test would serve first. A starvation-free
policy ends the first request within a bound. A policy that is not starvation-free never does, which
shows that the load can starve a request.
"""

import math

import pytest

from openinfer_contract import Adapter
from openinfer_scheduler import FCFS, Fair, LongestPrefixMatch, Priority, ShortestPrefillFirst

NUM_STEPS = 400
PREFIX = list(range(12))
"""A prompt that is cached from the start."""


class OldestLast(FCFS):
    """Serves the oldest request last: starves by design."""

    def order(self, sequences, now, /):
        return list(reversed(sequences))


PROMISES = {
    "fcfs": FCFS,
    "longest-prefix-match": lambda: LongestPrefixMatch(max_wait_s=0.05),
    "shortest-prefill-first": lambda: ShortestPrefillFirst(max_wait_s=0.05),
    "fair": Fair,
}
PROMISES_NOTHING = {
    "priority": Priority,
    "longest-prefix-match": lambda: LongestPrefixMatch(max_wait_s=math.inf),
    "shortest-prefill-first": lambda: ShortestPrefillFirst(max_wait_s=math.inf),
    "oldest last": OldestLast,
}


def steps_until_it_ends(loop, policy, *, admission, num_blocks, depth, is_adapted=False):
    """Steps until the disliked request has ended; returns None if that takes `NUM_STEPS`."""
    subject = loop(
        policy=policy,
        num_blocks=num_blocks,
        max_num_seqs=3,
        max_num_batched_tokens=12,
        max_queued_requests=12,
        admission=admission,
        depth=depth,
    )
    subject.add([*PREFIX, 30], max_tokens=1)
    subject.run()
    # Not cached, long, of low priority and of the most served tenant: every policy ranks it last.
    for number in range(3):
        subject.add([*PREFIX, 20 + number], max_tokens=4, priority=0, tenant="crowd0")
    slow = subject.add([31] * 20, max_tokens=10, priority=9, tenant="rare", ignore_eos=True)
    for step in range(NUM_STEPS):
        for number in range(3):
            subject.add(
                [*PREFIX, 20 + number],
                max_tokens=3 + number,
                ignore_eos=True,
                priority=0,
                tenant=f"crowd{number}",
                session_id=str(step % 5),
            )
        subject.step()
        if slow in subject.ends:
            break
    is_ended = slow in subject.ends
    subject.abort(*subject.requests)
    subject.run()
    return step if is_ended else None


WORLDS = pytest.mark.parametrize(
    ("admission", "num_blocks", "depth"),
    [("optimistic", 300, 2), ("optimistic", 10, 1), ("optimistic", 10, 2), ("lifetime", 12, 2)],
)


@WORLDS
@pytest.mark.parametrize("name", PROMISES)
def test_no_request_starves(loop, name, admission, num_blocks, depth):
    steps = steps_until_it_ends(
        loop, PROMISES[name](), admission=admission, num_blocks=num_blocks, depth=depth
    )
    assert steps is not None
    assert steps < 200


@pytest.mark.parametrize("name", PROMISES_NOTHING)
def test_policies_without_protection_starve(loop, name):
    steps = steps_until_it_ends(
        loop, PROMISES_NOTHING[name](), admission="optimistic", num_blocks=300, depth=2
    )
    assert steps is None


def test_adapters_in_use_do_not_starve_another(loop):
    common, rare = Adapter("common", b"c" * 16), Adapter("rare", b"r" * 16)
    subject = loop(max_adapters=1, max_num_seqs=3, max_num_batched_tokens=12, num_blocks=300)
    subject.add([1, 2], max_tokens=9, adapter=common, ignore_eos=True)
    subject.step()
    slow = subject.add([3, 4], max_tokens=2, adapter=rare, ignore_eos=True)
    for number in range(60):
        subject.add([5, number % 7], max_tokens=4, adapter=common, ignore_eos=True)
        subject.step()
        if slow in subject.ends:
            break
    assert slow in subject.ends
    subject.run()
