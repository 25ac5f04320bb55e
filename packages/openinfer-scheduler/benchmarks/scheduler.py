"""Host costs of the scheduler: `python benchmarks/scheduler.py`. CPU time of one thread."""

import gc
from time import thread_time

import numpy as np

from openinfer_contract import GenerateRequest, StopRules
from openinfer_kv_cache import CacheGroup, KVCache, Plane
from openinfer_scheduler import (
    FCFS,
    Policy,
    Priority,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    StepResult,
)

RNG = np.random.default_rng(0)
NUM_ROUNDS, STEPS_A_ROUND = 5, 512  # in 512 steps every row has blocks sealed once


def make(policy: Policy, *, num_seqs: int = 256, max_model_len: int = 8192) -> Scheduler:
    """A scheduler over 200,000 blocks of 16 tokens."""
    config = SchedulerConfig(
        max_model_len=max_model_len,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max_model_len,
        max_queued_requests=100_000,
        seed=0,
    )
    planes = (Plane(name="kv", bytes_per_token=1),)
    cache = KVCache((CacheGroup(name="full", planes=planes),), num_blocks=200_000)
    return Scheduler(config, cache, policy)


def request(number: int, num_tokens: int) -> GenerateRequest:
    """A request of random tokens."""
    ids = RNG.integers(0, 30_000, num_tokens, dtype=np.uint32)
    return GenerateRequest(
        request_id=str(number),
        prompt_token_ids=ids.astype("<u4").tobytes(),
        stop=StopRules(max_tokens=5000, stop_token_ids=(50_000,)),
    )


def result_of(plan: StepPlan | None) -> StepResult:
    """Random tokens for a plan's sampled rows."""
    assert plan is not None
    counts = np.array([row.is_sampled for row in plan.rows], np.int32)
    ids = RNG.integers(0, 30_000, int(counts.sum()), dtype=np.uint32)
    return StepResult(step_id=plan.step_id, counts=counts, token_ids=ids)


def steady_decode(policy: Policy, num_rows: int, num_waiting: int) -> None:
    """Prints what a step costs where every row decodes, two plans deep."""
    scheduler = make(policy, num_seqs=num_rows)
    adds = []
    for number in range(num_rows + num_waiting):
        arriving = request(number, int(RNG.integers(20, 276)))
        begin = thread_time()
        scheduler.add(arriving, 0.0)
        adds.append(thread_time() - begin)
    for _ in range(40):  # prompts are in, and the first blocks taken
        scheduler.apply(result_of(scheduler.plan(0.0)), 0.0)
    in_flight = scheduler.plan(0.0)
    gc.collect()
    gc.disable()
    times = np.empty((NUM_ROUNDS * STEPS_A_ROUND, 2))
    for step in range(len(times)):
        result = result_of(in_flight)
        begin = thread_time()
        in_flight = scheduler.plan(0.0)
        middle = thread_time()
        scheduler.apply(result, 0.0)
        times[step] = middle - begin, thread_time() - middle
    gc.enable()
    rounds = 1e6 * times.reshape(NUM_ROUNDS, STEPS_A_ROUND, 2).mean(1)
    best = rounds[rounds.sum(1).argmin()]
    print(
        f"{type(policy).__name__:9} {num_rows} rows, {num_waiting:5} waiting: "
        f"plan {best[0]:.0f} + apply {best[1]:.0f} = {best.sum():.0f} us "
        f"(mean of all {rounds.sum(1).mean():.0f}); add {1e6 * np.median(adds):.1f} us"
    )


def full_hit(num_tokens: int) -> None:
    """Prints what admitting a long prompt costs whose blocks are all cached."""
    scheduler = make(FCFS(), max_model_len=num_tokens + 8000)
    first = request(0, num_tokens)
    costs = []
    for attempt in range(6):
        again = GenerateRequest(
            request_id=str(attempt), prompt_token_ids=first.prompt_token_ids, stop=first.stop
        )
        begin = thread_time()
        scheduler.add(again, 0.0)
        plan = scheduler.plan(0.0)
        costs.append(thread_time() - begin)
        scheduler.apply(result_of(plan), 0.0)
        scheduler.abort([str(attempt)], 0.0)
        scheduler.apply(result_of(scheduler.plan(0.0)), 0.0)
    print(
        f"add + plan of {num_tokens} tokens, full prefix hit, hashing included: "
        f"{1e3 * min(costs[1:]):.2f} ms"
    )


if __name__ == "__main__":
    for policy in (FCFS(), Priority()):
        for num_waiting in (0, 1024):
            steady_decode(policy, 256, num_waiting)
    full_hit(100_000)
