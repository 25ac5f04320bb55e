"""Charging policies for served tokens: delayed, but by a bounded number of steps."""

from collections import Counter

import pytest

from openinfer_scheduler import FCFS, PolicyError
from openinfer_scheduler.state._service_accounts import CHARGED_EVERY


class Booked(FCFS):
    """Compares charged with planned tokens at each call of `order`."""

    def __init__(self):
        self.planned, self.charged, self.prompts = Counter(), Counter(), Counter()
        self.num_orders = self.num_charges = 0

    def charge(self, sequence, num_tokens, /):
        self.num_charges += 1
        self.charged[sequence.request_id] += num_tokens
        assert self.charged[sequence.request_id] >= 0

    def order(self, sequences, now, /):
        self.num_orders += 1
        for name, num_planned in self.planned.items():
            num_charged = self.charged[name]
            # The plan being built may be charged already. Starts of others can delay a round.
            assert num_planned - 2 * CHARGED_EVERY <= num_charged <= num_planned + 1
            assert num_charged >= self.prompts[name], "prompt chunks are charged at once"
        return sequences

    def note(self, subject, plan):
        for row in plan.rows:
            name = subject.executor.slots[row.slot]
            self.planned[name] += row.num_tokens
            if row.token_ids is not None:
                self.prompts[name] += row.num_tokens


def long_decoding(loop, policy, depth):
    """Returns a loop with three requests and room for three more."""
    subject = loop(
        policy=policy,
        num_blocks=300,
        max_model_len=200,
        max_num_batched_tokens=64,
        max_num_seqs=6,
        depth=depth,
    )
    for number in range(3):
        subject.add([number] * 5, max_tokens=180, ignore_eos=True)
    return subject


def served(loop, policy, depth):
    """Returns a loop that has served a few requests under the policy."""
    subject = long_decoding(loop, policy, depth)
    num_plans = 0
    while subject.scheduler.has_work:
        if num_plans in (8, 15, 38):
            subject.add([9, num_plans], max_tokens=3, ignore_eos=True)
        if num_plans == 30:
            subject.abort("r0")
        while (plan := subject.plan()) is not None:
            policy.note(subject, plan)
            num_plans += 1
        subject.complete()
    subject.run()
    return subject


@pytest.mark.parametrize("depth", [1, 2])
def test_everything_is_charged_in_time(loop, depth):
    policy = Booked()
    served(loop, policy, depth)
    assert policy.num_orders > 3
    assert policy.charged == policy.planned, "ended requests are charged in full"
    assert policy.num_charges < sum(policy.planned.values()) / 2


@pytest.mark.parametrize("depth", [1, 2])
def test_long_requests_are_charged_in_time_while_short_ones_start_and_end(loop, depth):
    policy = Booked()
    subject = long_decoding(loop, policy, depth)
    num_plans = 0
    while "r0" not in subject.ends:
        subject.add([9, num_plans], max_tokens=2 + num_plans % 3, ignore_eos=True)
        while (plan := subject.plan()) is not None:
            policy.note(subject, plan)
            num_plans += 1
        subject.complete()
    assert policy.num_orders > 100


def test_a_charge_that_raises_when_a_request_ends_replaces_the_policy(loop):
    class Raising(FCFS):
        is_broken = False

        def charge(self, sequence, num_tokens, /):
            if self.is_broken:
                raise ZeroDivisionError

    policy = Raising()
    subject = loop(policy=policy)
    for number in range(2):
        subject.add([number], max_tokens=20, ignore_eos=True)
    for _ in range(4):
        subject.step()
    policy.is_broken = True
    assert [name for name, _ in subject.abort("r0")] == ["r0"]
    with pytest.raises(PolicyError, match="ZeroDivisionError"):
        subject.plan()
    policy.is_broken = False
    subject.run()
