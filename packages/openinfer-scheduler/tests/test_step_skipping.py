"""Skipping many decode steps at once has the effect of single steps."""

import random
from dataclasses import replace

import numpy as np
import pytest

from openinfer_contract import pack_ids
from openinfer_kv_cache import CacheGroup, Plane
from openinfer_scheduler import (
    FCFS,
    Fair,
    LongestPrefixMatch,
    Priority,
    ShortestPrefillFirst,
    StepOrderError,
    StepPlan,
)

_NO_BLOCKS = (np.empty(0, np.int32),)


class Charged(Fair):
    """Notes every charge."""

    def __init__(self):
        super().__init__()
        self.charges = []

    def charge(self, sequence, num_tokens, /):
        self.charges.append((sequence.request_id, num_tokens))
        super().charge(sequence, num_tokens)


def skip(subject, plan, num_steps):
    """Launches steps like `plan` and waits for as many, as an engine on a virtual clock does."""
    columns = [[] for _ in plan.rows]
    for number in range(1, num_steps + 1):
        rows = tuple(replace(row, new_block_ids=_NO_BLOCKS) for row in plan.rows)
        again = StepPlan(step_id=plan.step_id + number, ends=(), starts=(), rows=rows)
        subject.executor.launch(again)
        subject.in_flight.append(plan.step_id + number)
        result = subject.executor.wait(subject.in_flight.popleft())
        for column, token_id in zip(columns, result.token_ids.tolist(), strict=True):
            column.append(token_id)
        subject.now += 1.0
    subject.take(
        subject.scheduler.skip_decode_steps(list(map(pack_ids, columns)), num_steps, subject.now)
    )


def run(loop, seed, policy, *, is_skipping, **options):
    """Runs requests that arrive at random steps; returns their outcome and that of the cache."""
    rng = random.Random(seed)
    subject = loop(**({"num_blocks": 40, "policy": policy} | options))
    coming = sorted(rng.randrange(150) for _ in range(12))
    requests = [
        {
            "prompt": [rng.randrange(3)] * rng.randrange(1, 30),
            "max_tokens": rng.randrange(1, 30),
            "ignore_eos": rng.random() < 0.9,
            "priority": rng.randrange(3),
            "tenant": str(rng.randrange(2)),
        }
        for _ in coming
    ]
    step = num_skipped = 0
    newest = None
    while coming or subject.scheduler.has_work:
        subject.now = float(step)
        while coming and coming[0] <= step:
            del coming[0]
            subject.add(**requests.pop(0))
        num_steps = min(subject.scheduler.num_skippable_steps, (coming or [step + 99])[0] - step)
        if is_skipping and num_steps:
            num_steps = rng.randint(1, num_steps)
            skip(subject, newest, num_steps)
            newest = replace(newest, step_id=newest.step_id + num_steps)
            step += num_steps
            num_skipped += num_steps
        else:
            while (plan := subject.plan()) is not None:
                newest = plan
            if subject.in_flight:
                subject.complete()
            step += 1
        assert step < 2000
    subject.check_idle()
    subject.check_streams()
    stats, load = subject.cache.stats(), subject.scheduler.load()
    outcome = (
        {request_id: (end, subject.output[request_id]) for request_id, end in subject.ends.items()},
        (load.step_id, load.num_output_tokens, stats.num_evictable, stats.num_evictions),
        (stats.num_queried_tokens, stats.num_hit_tokens),
        getattr(policy, "charges", None),
    )
    return outcome, num_skipped


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (FCFS, {}),
        (Priority, {"admission": "lifetime"}),
        (Charged, {}),
        (ShortestPrefillFirst, {"num_blocks": 14}),
        (LongestPrefixMatch, {"has_prefix_cache": False}),
    ],
)
def test_skipped_steps_equal_single_steps(loop, policy, options):
    num_skipped = 0
    for seed in range(6):
        alone, none = run(loop, seed, policy(), is_skipping=False, **options)
        together, num = run(loop, seed, policy(), is_skipping=True, **options)
        assert together == alone
        assert none == 0
        num_skipped += num
    assert num_skipped > 100


def quiet(loop, **options):
    """Returns a loop with two decoding sequences and one plan in flight."""
    subject = loop(num_blocks=300, max_num_batched_tokens=64, **options)
    for number in range(2):
        subject.add([number] * 5, max_tokens=40, ignore_eos=True)
    for _ in range(6):
        subject.step()
    return subject


def test_no_step_is_skipped_if_anything_may_change(loop):
    assert quiet(loop).scheduler.num_skippable_steps > 10
    assert quiet(loop, depth=1).scheduler.num_skippable_steps == 0
    assert quiet(loop, target_itl_s=0.05).scheduler.num_skippable_steps == 0
    waited_for = quiet(loop)
    waited_for.add([3], max_tokens=1)
    assert waited_for.scheduler.num_skippable_steps == 0
    limited, unlimited = quiet(loop), quiet(loop)
    limited.add([3], max_tokens=30, ignore_eos=True, deadline=1e6)
    unlimited.add([3], max_tokens=30, ignore_eos=True)
    for _ in range(6):
        limited.step()
        unlimited.step()
    assert limited.scheduler.num_skippable_steps == 0
    assert unlimited.scheduler.num_skippable_steps > 10
    left = quiet(loop)
    left.abort("r0")
    assert left.scheduler.num_skippable_steps == 0
    for subject in (waited_for, limited, unlimited, left):
        subject.run()


@pytest.mark.parametrize("admission", ["optimistic", "lifetime"])
def test_no_step_is_skipped_while_promises_are_counted(loop, admission):
    """With lifetime admission and state groups, promises are counted every 32 plans."""
    state = CacheGroup(name="s", kind="state", planes=(Plane(name="s", bytes_per_token=256),))
    full = CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=16),))
    subject = quiet(loop, groups=(full, state), num_slabs=200, admission=admission)
    assert (subject.scheduler.num_skippable_steps > 0) == (admission == "optimistic")
    subject.run()


def test_too_many_steps_are_refused(loop):
    subject = quiet(loop)
    for num_steps in (0, subject.scheduler.num_skippable_steps + 1):
        with pytest.raises(StepOrderError, match="num_skippable_steps"):
            subject.scheduler.skip_decode_steps([b"", b""], num_steps, subject.now)
    subject.run()
