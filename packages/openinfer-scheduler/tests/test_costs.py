"""CPU time of the scheduler: fails at twice the goals of `benchmarks/scheduler.py`.

Measures this thread's CPU time and takes the best of many rounds, so that other load on the machine
does not fail a test.
"""

import importlib.util
from itertools import islice
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timed]
MAX_TRIES = 4


@pytest.fixture(scope="module")
def benchmark():
    path = Path(__file__).parents[3] / "benchmarks" / "scheduler.py"
    spec = importlib.util.spec_from_file_location("scheduler_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def least(measure, bound_s):
    """Returns the least of `MAX_TRIES` measurements, or the first within the bound."""
    best_s = float("inf")
    for _ in range(MAX_TRIES):
        best_s = min(best_s, measure())
        if best_s <= bound_s:
            break
    return best_s


POLICIES = ("fcfs", "priority", "longest-prefix-match", "shortest-prefill-first", "fair")


def check_steps(benchmark, goal, timed):
    bound_s = 2 * benchmark.GOALS_S[goal]
    assert least(lambda: sum(benchmark.best_round(timed)), bound_s) <= bound_s
    timed.close()


def test_a_steady_step(benchmark):
    check_steps(benchmark, "steady", benchmark.slices(benchmark.POLICIES["fcfs"](), 0))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_steady_step_while_many_wait(benchmark, policy):
    check_steps(benchmark, "waiting", benchmark.slices(benchmark.POLICIES[policy](), 1024))


@pytest.mark.parametrize("change", ["none", "queue"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_whose_queue_finds_no_room(benchmark, policy, change):
    """A queue that changes is ranked anew in every plan."""
    timed = benchmark.slices(benchmark.POLICIES[policy](), 1024, has_free_slot=True, change=change)
    check_steps(benchmark, "waiting", timed)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_in_which_one_starts_and_another_has_ended(benchmark, policy):
    timed = benchmark.slices(benchmark.POLICIES[policy](), 1024, change="slots")
    check_steps(benchmark, "waiting", timed)


def test_admission_of_a_long_cached_prompt(benchmark):
    bound_s = 2 * benchmark.GOALS_S["full_hit"]
    hits = benchmark.full_hit_rounds()

    def admitted():
        admitted_s, hashed_s = map(min, zip(*islice(hits, 8), strict=True))
        return admitted_s - hashed_s

    assert least(admitted, bound_s) <= bound_s
    hits.close()
