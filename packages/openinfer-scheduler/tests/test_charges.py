"""What policies hear of who was served: late at times, but never too late."""

from collections import Counter

import pytest

from openinfer_scheduler import FCFS


class Booked(FCFS):
    """Holds, whenever it is asked for an order, what was charged to what was planned."""

    def __init__(self):
        self.planned, self.charged = Counter(), Counter()
        self.num_orders = self.num_charges = 0

    def charge(self, sequence, num_tokens, /):
        self.num_charges += 1
        self.charged[sequence.request_id] += num_tokens
        assert self.charged[sequence.request_id] >= 0

    def order(self, sequences, now, /):
        self.num_orders += 1
        assert self.charged == self.planned
        return sequences

    def note(self, subject, plan, sign=1):
        for row in plan.rows:
            self.planned[subject.executor.slots[row.slot]] += sign * row.num_tokens


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_reverted", [0, 1])
def test_everything_is_charged_before_the_policy_is_asked(loop, depth, num_reverted):
    policy = Booked()
    subject = loop(
        policy=policy, num_blocks=300, max_num_batched_tokens=64, max_num_seqs=6, depth=depth
    )
    for number in range(3):
        subject.add([number] * 5, max_tokens=30, ignore_eos=True)
    num_plans = 0
    while subject.scheduler.has_work:
        if num_plans in (8, 15):
            subject.add([9, num_plans], max_tokens=3, ignore_eos=True)
        if num_plans % 5 == 3:
            for _ in range(num_reverted):
                subject.plan(launch=False)
        while (plan := subject.plan()) is not None:
            policy.note(subject, plan)
            num_plans += 1
        subject.complete()
    subject.run()
    assert policy.num_orders > 3
    assert num_reverted or policy.num_charges < sum(policy.planned.values()) / 2
