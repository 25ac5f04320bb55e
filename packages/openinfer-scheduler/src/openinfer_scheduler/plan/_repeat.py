"""Many steps at once that only repeat the one in flight: for simulations on a virtual clock.

What `plan` and `apply` would do with each of them is known: the same rows, one token more a row.
"""

from collections.abc import Sequence
from dataclasses import replace

from openinfer_contract import TokenEvent
from openinfer_scheduler._step_plan import StepPlan
from openinfer_scheduler.settle._settle import Effects
from openinfer_scheduler.state._scheduler_state import SchedulerState


def num_repeats(state: SchedulerState) -> int:
    """How many steps may follow the one in flight with its rows and nothing to decide."""
    if len(state.in_flight) != 1 or state.waiting or state.settling or state.slots.has_over:
        return 0
    step = state.in_flight[0]
    if step.steady is None or step.num_decode < len(step.stays):
        return 0
    steady = step.steady.owner
    if steady.has_stop_ids or not steady.is_current(state.num_changes):
        return 0
    return steady.num_repeats(step.steady.number)


def repeat(state: SchedulerState, columns: Sequence[bytes], num_steps: int) -> Effects:
    """Settles the step in flight and those after it but the last, which is in flight then."""
    step = state.in_flight.popleft()
    steady = step.steady
    assert steady is not None, "rows that repeat are steady"
    oldest = step.plan.step_id
    newest = oldest + num_steps
    plan = StepPlan(step_id=newest, ends=(), starts=(), rows=tuple(steady.rows))
    later = steady._replace(number=steady.number + num_steps)
    state.in_flight.append(replace(step, plan=plan, steady=later))
    # Those after the first have neither taken nor sealed a block: to the cache they are one.
    state.cache.begin_step(newest)
    state.cache.complete_step(oldest)
    state.next_step = newest + 1
    state.last_completed = newest - 1
    steady.owner.repeat(columns, num_steps, newest)
    state.counters.num_output_tokens += num_steps * len(columns)
    events = [TokenEvent(token_ids=column) for column in columns]
    return list(zip(steady.request_ids, events, strict=True))
