"""Executor that computes nothing: the cost model gives durations, `Content` gives tokens."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openinfer_contract import Command, CommandFailed, CommandResult
from openinfer_engine import Ability, ExecutorInfo, GrammarMasks
from openinfer_scheduler import PlannedRow, StepPlan, StepResult
from openinfer_sim.device._clock import Clock
from openinfer_sim.device._content import Content
from openinfer_sim.device._cost_model import CostModel

HONOURED = frozenset({"sampling.seed"})
"""Request features that the modelled executor honours."""

ABILITIES: frozenset[Ability] = frozenset(
    {"several_groups", "window_groups", "state_groups", "copies"}
)
"""Optional parts of a plan that the executor accepts. They take no time of their own: they are
free, or the cost model includes them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Time that the step thread needs to launch a step, before the device can begin it."""

    step_s: float = 0.0
    row_s: float = 0.0


class ModelledExecutor:
    """Executor whose steps take as long as the cost model says, one after the other.

    Tokens are those of `Content`: they ignore all sampling options except the seed. The executor
    models what the scheduler can see of a device, nothing else.

    Args:
        info: Description of the executor for the engine.
        cost: Durations of steps.
        content: Output tokens.
        clock: Virtual or real clock, which `wait` uses.
        host: Costs that every launch adds on the step thread.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        cost: CostModel,
        content: Content,
        clock: Clock,
        host: HostCosts | None = None,
    ) -> None:
        self._info = info
        self._cost = cost
        self._content = content
        self._clock = clock
        self._host = host or HostCosts()
        self._lengths = [0] * info.max_num_seqs
        """Number of positions computed or cached, by slot. A run of decode steps is added at its
        end.
        """
        self._places = [0] * info.max_num_seqs
        self._free_at = clock()
        self.step_times: list[float] = []
        """Times at which the steps of the last `run_decode_steps` were completed."""
        self._results: deque[tuple[float, StepResult]] = deque()
        self._steady_slots: list[int] = []
        self._num_steady_steps = 0
        self._steady_kv_tokens = 0
        self._steady_places: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._steady_counts: npt.NDArray[np.int32] = np.empty(0, np.int32)

    @property
    def info(self) -> ExecutorInfo:
        """Description of the executor. Constant while the executor lives."""
        return self._info

    @property
    def busy_until(self) -> float:
        """Time at which the device has completed all launched steps."""
        return self._free_at

    def launch(self, plan: StepPlan, /) -> int:
        """Enqueues the step after all launched steps."""
        rows = plan.rows
        clock, host = self._clock, self._host
        clock.spend(host.step_s + host.row_s * len(rows))
        slots = [row.slot for row in rows]
        # Decode rows come first: if the last one is a decode row, all are.
        is_decode = not plan.starts and bool(rows) and rows[-1].token_ids is None
        if is_decode and slots == self._steady_slots:
            duration, result = self._steady_step(plan.step_id)
        else:
            self._settle_steady()
            for start in plan.starts:
                self._lengths[start.slot] = start.num_cached_tokens
                self._places[start.slot] = self._content.place(start.request, start.seed)
            if is_decode:
                self._begin_steady(slots)
                duration, result = self._steady_step(plan.step_id)
            else:
                duration, result = self._mixed_step(plan.step_id, rows)
        self._free_at = max(self._free_at, clock()) + duration
        self._results.append((self._free_at, result))
        return plan.step_id

    def sample(self, ticket: int, masks: GrammarMasks, /) -> None:
        """Does nothing: the duration of the step includes sampling."""

    def wait(self, ticket: int, /) -> StepResult:
        """Waits until the oldest step is due and returns its result."""
        due, result = self._results.popleft()
        assert result.step_id == ticket, "steps must be waited for in launch order"
        self._clock.wait_until(due)
        return result

    def earliest_end(self, num_steps: int) -> float:
        """Returns the earliest time at which `num_steps` decode steps can be complete.

        Args:
            num_steps: Number of steps, at least 1.
        """
        due, _ = self._results[0]
        num_rows = len(self._steady_slots)
        # A step takes at least as long as the step before it: contexts only grow.
        shortest = self._cost.decode_s(num_rows, self._steady_kv_tokens)
        return due + (num_steps - 1) * shortest

    def run_decode_steps(self, num_steps: int, until: float) -> tuple[int, list[bytes]]:
        """Launches decode steps with the rows of the last step, and waits for as many steps.

        On a virtual clock this has the effect of alternating `launch` and `wait`. Exactly one step
        must be in flight: the last one launched, with only decode rows.

        Args:
            num_steps: Upper bound of the steps, at least 1.
            until: No step is launched at this time or later, except the first.

        Returns:
            The number of steps, and for each row the tokens of the completed steps as a u32 column.
        """
        assert len(self._results) == 1, "exactly one step must be in flight"
        slots, clock = self._steady_slots, self._clock
        num_rows = len(slots)
        host_s = self._host.step_s + self._host.row_s * num_rows
        durations = self._cost.decode_run_s(num_rows, self._steady_kv_tokens, num_steps)
        now, free_at = clock(), self._free_at
        due, pending = self._results.popleft()
        times: list[float] = []
        for duration in durations:
            now += host_s
            begin = free_at if free_at > now else now
            free_at = begin + duration
            if due > now:
                now = due
            due = free_at
            times.append(now)
            if now >= until:
                break
        num_done = len(times)
        places = self._steady_places + np.arange(num_done + 1)[:, np.newaxis]
        tokens = self._content.read(places)
        clock.wait_until(now)
        self.step_times = times
        self._free_at = free_at
        self._num_steady_steps += num_done
        self._steady_kv_tokens += num_done * num_rows
        self._steady_places += num_done
        last = StepResult(
            step_id=pending.step_id + num_done, counts=self._steady_counts, token_ids=tokens[-1]
        )
        self._results.append((due, last))
        return num_done, [column.tobytes() for column in tokens[:-1].T]

    def prepare(self) -> bool:
        """Returns False: there is nothing to prepare."""
        return False

    def control(self, command: Command, /) -> CommandResult:
        """Refuses every command as unsupported."""
        return CommandFailed(kind="unsupported", message="the modelled executor has no commands")

    def close(self) -> None:
        """Does nothing: there is nothing to free."""

    def _begin_steady(self, slots: list[int]) -> None:
        """Begins a run of decode steps with these slots.

        Lengths are counted once for the whole run.
        """
        lengths = [self._lengths[slot] for slot in slots]
        self._steady_slots = slots
        self._num_steady_steps = 0
        self._steady_kv_tokens = sum(lengths)
        places = [self._places[slot] for slot in slots]
        self._steady_places = np.array(places, np.int64) + np.array(lengths, np.int64)
        self._steady_counts = np.ones(len(slots), np.int32)

    def _steady_step(self, step_id: int) -> tuple[float, StepResult]:
        num_rows = len(self._steady_slots)
        self._num_steady_steps += 1
        self._steady_kv_tokens += num_rows
        self._steady_places += 1
        result = StepResult(
            step_id=step_id,
            counts=self._steady_counts,
            token_ids=self._content.read(self._steady_places),
        )
        return self._cost.decode_s(num_rows, self._steady_kv_tokens), result

    def _settle_steady(self) -> None:
        for slot in self._steady_slots:
            self._lengths[slot] += self._num_steady_steps
        self._steady_slots = []

    def _mixed_step(self, step_id: int, rows: tuple[PlannedRow, ...]) -> tuple[float, StepResult]:
        lengths, places = self._lengths, self._places
        num_decode = decode_kv = num_prefill_tokens = pairs = prefill_kv = 0
        sampled: list[int] = []
        for row in rows:
            slot, num_tokens = row.slot, row.num_tokens
            start = lengths[slot]
            lengths[slot] = end = start + num_tokens
            if row.token_ids is None:
                num_decode += 1
                decode_kv += end
            else:
                num_prefill_tokens += num_tokens
                pairs += num_tokens * start + num_tokens * (num_tokens + 1) // 2
                prefill_kv += end
            if row.is_sampled:
                sampled.append(places[slot] + end)
        result = StepResult(
            step_id=step_id,
            counts=np.array([row.is_sampled for row in rows], np.int32),
            token_ids=self._content.read(np.array(sampled, np.int64)),
        )
        duration = self._cost.mixed_s(
            num_decode_rows=num_decode,
            num_decode_kv_tokens=decode_kv,
            num_prefill_rows=len(rows) - num_decode,
            num_prefill_tokens=num_prefill_tokens,
            num_prefill_pairs=pairs,
            num_prefill_kv_tokens=prefill_kv,
            num_sampled=len(sampled),
        )
        return duration if rows else 0.0, result
