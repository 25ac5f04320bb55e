"""What the scheduler costs: red at twice the goals of `benchmarks/scheduler.py`.

CPU time of this thread, the best of many rounds, so that a busy machine costs time and no truth.
"""

import importlib.util
from itertools import islice
from pathlib import Path

import pytest

MAX_TRIES = 4


@pytest.fixture(scope="module")
def benchmark():
    path = Path(__file__).parents[1] / "benchmarks" / "scheduler.py"
    spec = importlib.util.spec_from_file_location("scheduler_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def least(measure, bound_s):
    """The least of so many measurements, or the first within the bound."""
    best_s = float("inf")
    for _ in range(MAX_TRIES):
        best_s = min(best_s, measure())
        if best_s <= bound_s:
            break
    return best_s


@pytest.mark.parametrize(
    ("policy", "goal", "num_waiting", "has_free_slot"),
    [
        ("fcfs", "steady", 0, False),
        ("fcfs", "waiting", 1024, False),
        ("fcfs", "waiting", 1024, True),
        ("priority", "waiting", 1024, True),
        ("longest-prefix-match", "waiting", 1024, True),
        ("shortest-prefill-first", "waiting", 1024, True),
        ("fair", "waiting", 1024, True),
    ],
)
def test_a_steady_step(benchmark, policy, goal, num_waiting, has_free_slot):
    bound_s = 2 * benchmark.GOALS_S[goal]
    slices = benchmark.steady_slices(
        benchmark.POLICIES[policy](), num_waiting, has_free_slot=has_free_slot
    )
    assert least(lambda: sum(benchmark.steady_best(slices)), bound_s) <= bound_s
    slices.close()


def test_admission_of_a_long_cached_prompt(benchmark):
    bound_s = 2 * benchmark.GOALS_S["full_hit"]
    hits = benchmark.full_hit_rounds()

    def admitted():
        admitted_s, hashed_s = map(min, zip(*islice(hits, 8), strict=True))
        return admitted_s - hashed_s

    assert least(admitted, bound_s) <= bound_s
    hits.close()
