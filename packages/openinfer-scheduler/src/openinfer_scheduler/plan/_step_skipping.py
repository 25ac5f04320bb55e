"""Skipping over many decode steps at once, for simulations.

A simulation on a virtual clock knows how long such steps take. Planning and applying each of them
would be most of its run time: 2 to 8 times as long, see docs/decisions/0031.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from operator import iadd

from openinfer_contract import TokenEvent
from openinfer_scheduler._step_plan import StepPlan
from openinfer_scheduler.settle._settle import Effects
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import BYTES_PER_ID


def num_skippable_steps(state: SchedulerState) -> int:
    """Returns how many steps after the step in flight will only decode the same rows.

    In these steps no request waits, no row needs a block, and no token can end a request or fill a
    block that the cache must seal.
    """
    if len(state.in_flight) != 1 or state.waiting or state.settling:
        return 0
    step = state.in_flight[0]
    if state.slots.has_unannounced_ends or len(step.tenancies) != len(state.running):
        return 0
    if state.config.num_draft_tokens or any(tenancy.stop_ids for tenancy in step.tenancies):
        return 0
    # Both are 0 or less for a tenancy that ended, prefills or has not sampled a token yet.
    num_plain = min((t.plain_until - t.num_planned for t in step.tenancies), default=0)
    num_unchecked = min((t.next_check - len(t.tokens) for t in step.tenancies), default=0)
    return max(0, min(num_plain, num_unchecked // BYTES_PER_ID))


def skip_decode_steps(state: SchedulerState, columns: Sequence[bytes], num_steps: int) -> Effects:
    """Applies the step in flight and the steps after it except the last, which is in flight then.

    Args:
        state: The scheduler's state, which is changed.
        columns: For each row, its `num_steps` tokens as a u32 column.
        num_steps: Number of new steps, from 1 to `num_skippable_steps`.
    """
    step = state.in_flight.popleft()
    oldest = step.plan.step_id
    newest = oldest + num_steps
    rows = tuple(tenancy.decode_row for tenancy in step.tenancies)
    plan = StepPlan(step_id=newest, ends=(), starts=(), rows=rows)
    state.in_flight.append(replace(step, plan=plan, started=[]))
    # The steps between take and seal no blocks, so the cache need not know them.
    state.cache.begin_step(newest)
    state.cache.complete_step(oldest)
    state.next_step = newest + 1
    state.last_completed = newest - 1
    for tenancy in step.tenancies:
        tenancy.num_planned += num_steps
        tenancy.last_step = newest
    deque(map(iadd, [tenancy.tokens for tenancy in step.tenancies], columns), maxlen=0)
    state.counters.num_output_tokens += num_steps * len(columns)
    return [
        (tenancy.request_id, TokenEvent(token_ids=column))
        for tenancy, column in zip(step.tenancies, columns, strict=True)
    ]
