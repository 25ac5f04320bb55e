"""Many requests on one cold prompt cost one prefill."""

import numpy as np
import pytest

from openinfer_contract import GenerateRequest, StopRules, pack_ids
from openinfer_kv_cache import CacheGroup, KVCache, Plane
from openinfer_scheduler import (
    FCFS,
    Fair,
    LongestPrefixMatch,
    Priority,
    Scheduler,
    SchedulerConfig,
    ShortestPrefillFirst,
    StepResult,
)

PROMPT = np.random.default_rng(0).integers(0, 30_000, 4096, dtype=np.uint32).astype("<u4").tobytes()


@pytest.mark.parametrize("spread", ["at once", "a step apart"])
@pytest.mark.parametrize("admission", ["optimistic", "lifetime"])
@pytest.mark.parametrize(("depth", "budget"), [(1, 512), (2, 512), (1, 8192), (2, 8192)])
@pytest.mark.parametrize("policy", [FCFS, Priority, LongestPrefixMatch, ShortestPrefillFirst, Fair])
def test_eight_samples_of_a_cold_prompt_cost_one_prefill(policy, depth, budget, admission, spread):
    config = SchedulerConfig(
        max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=budget, depth=depth,
        admission=admission,
    )  # fmt: skip
    group = CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=1),))
    scheduler = Scheduler(config, KVCache((group,), num_blocks=2000), policy())
    waiting = [
        GenerateRequest(
            request_id=str(n),
            prompt_token_ids=PROMPT,
            stop=StopRules(max_tokens=4),
            session_id=str(n),
        )
        for n in range(8)
    ]
    num_prefilled, in_flight, ended = 0, [], 0
    while ended < 8:
        for request in waiting if spread == "at once" else waiting[:1]:
            assert scheduler.add(request, 0.0) is None
        waiting = [] if spread == "at once" else waiting[1:]
        while (plan := scheduler.plan(0.0)) is not None:
            num_prefilled += sum(row.num_tokens for row in plan.rows if row.token_ids is not None)
            in_flight.append(plan)
        plan = in_flight.pop(0)
        counts = np.array([row.is_sampled for row in plan.rows], np.int32)
        ids = np.full(counts.sum(), 7, np.uint32)
        result = StepResult(step_id=plan.step_id, counts=counts, token_ids=ids)
        ended += sum(event.end is not None for _, event in scheduler.apply(result, 0.0))
    # The others compute the last block, because at least one token cannot come from the cache.
    assert num_prefilled == 4096 + 7 * 16


def loaded_scheduler(num_followers):
    """Returns a scheduler with a leader, its followers and a short request, in this order."""
    config = SchedulerConfig(
        max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=128, max_chunk_tokens=64
    )
    group = CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=1),))
    scheduler = Scheduler(config, KVCache((group,), num_blocks=9000))

    def add(request_id, prompt):
        stop = StopRules(max_tokens=4)
        request = GenerateRequest(request_id=request_id, prompt_token_ids=prompt, stop=stop)
        assert scheduler.add(request, 0.0) is None

    for number in range(num_followers):
        add(str(number), PROMPT + number.to_bytes(4, "little"))
    add("short", pack_ids([1, 2, 3]))
    return scheduler


def plans_until_started(num_followers):
    """Returns the plans until the short request of `loaded_scheduler` starts."""
    scheduler = loaded_scheduler(num_followers)
    for number in range(1, 100):
        plan = scheduler.plan(0.0)
        if "short" in [start.request.request_id for start in plan.starts]:
            return number
        counts = np.array([row.is_sampled for row in plan.rows], np.int32)
        ids = np.full(counts.sum(), 7, np.uint32)
        result = StepResult(step_id=plan.step_id, counts=counts, token_ids=ids)
        scheduler.apply(result, 0.0)
    return None


@pytest.mark.parametrize("num_followers", [10, 17, 100, 900])
def test_a_request_passes_all_followers_of_a_prefix(num_followers):
    """The leader's prompt takes 64 plans, each of which has tokens left for others."""
    assert plans_until_started(num_followers) <= 2 + num_followers * 4096 // 65_536


def test_few_followers_are_hashed_in_one_plan():
    scheduler = loaded_scheduler(100)
    live = scheduler._state.live.values()
    num_hashed = 0
    for _ in range(3):
        assert scheduler.plan(0.0) is not None
        before, num_hashed = num_hashed, sum(sequence.keys is not None for sequence in live)
        assert 16 <= num_hashed - before <= 16 + 2
        for step in list(scheduler._state.in_flight):
            result = StepResult(
                step_id=step.plan.step_id,
                counts=np.zeros(len(step.plan.rows), np.int32),
                token_ids=np.zeros(0, np.uint32),
            )
            scheduler.apply(result, 0.0)
