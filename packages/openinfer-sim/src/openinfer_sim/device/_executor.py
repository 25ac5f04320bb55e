"""An Executor that runs nothing: it knows how long a step takes and answers random ids."""

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
"""Request features that random ids can honour."""

ABILITIES: frozenset[Ability] = frozenset(
    {"several_groups", "window_groups", "state_groups", "copies"}
)
"""Parts of plans that cost a modelled device nothing, or are part of a step's modelled time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """What a step costs the step thread before the device can begin."""

    step_s: float = 0.0
    row_s: float = 0.0


class ModelledExecutor:
    """Steps that take as long as the cost model says, one after the other, as on a device.

    Honours every sampling control in the sense that its tokens obey none of them: they are
    `Content`. Whatever the scheduler can see of a device is modelled, nothing else.

    Args:
        info: what the engine is told.
        cost: durations.
        content: tokens.
        clock: a virtual clock, advanced by `wait`; or the real one, slept on.
        host: added on the clock's host side to every launch.
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
        """By slot: positions forwarded or cached, those of steady steps not yet counted."""
        self._places = [0] * info.max_num_seqs
        self._free_at = clock()
        self.step_times: list[float] = []
        """When each of the steps was over that the last `run_decode_steps` waited for."""
        self._results: deque[tuple[float, StepResult]] = deque()
        self._steady_slots: list[int] = []
        self._num_steady_steps = 0
        self._steady_kv_tokens = 0
        self._steady_places: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._steady_counts: npt.NDArray[np.int32] = np.empty(0, np.int32)

    @property
    def info(self) -> ExecutorInfo:
        """Constant while the executor lives."""
        return self._info

    @property
    def busy_until(self) -> float:
        """When the device has done all that was launched, on the clock."""
        return self._free_at

    def launch(self, plan: StepPlan, /) -> int:
        """Enqueues the step behind those before it."""
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
        """Part of the step's duration already."""

    def wait(self, ticket: int, /) -> StepResult:
        """Waits until the oldest step is due."""
        due, result = self._results.popleft()
        assert result.step_id == ticket, "steps are waited for in order"
        self._clock.wait_until(due)
        return result

    def earliest_end(self, num_steps: int) -> float:
        """Returns a lower bound of the time at which `run_decode_steps` has run `num_steps`."""
        due, _ = self._results[0]
        num_rows = len(self._steady_slots)
        # They get longer from one to the next.
        shortest = self._cost.decode_s(num_rows, self._steady_kv_tokens)
        return due + (num_steps - 1) * shortest

    def run_decode_steps(self, num_steps: int, until: float) -> tuple[int, list[bytes]]:
        """Launches steps like the last one and waits for as many, oldest first.

        As if by `launch` and `wait` in turn, for a virtual clock. To be called where one step of
        decode rows is in flight, and the last one launched.

        Args:
            num_steps: at most so many, at least one.
            until: no step is launched at this time or later, but for the first.

        Returns:
            How many, and by row what those waited for have sampled, as u32 columns.
        """
        assert len(self._results) == 1, "what repeats is in flight, and nothing else"
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
        """There is nothing to prepare."""
        return False

    def control(self, command: Command, /) -> CommandResult:
        """Has no command of its own."""
        return CommandFailed(kind="unsupported", message="the modelled executor has no commands")

    def close(self) -> None:
        """Nothing to free."""

    def _begin_steady(self, slots: list[int]) -> None:
        """From now on every step has exactly these decode rows, until one has not."""
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
