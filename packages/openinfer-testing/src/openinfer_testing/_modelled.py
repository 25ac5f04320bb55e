"""Counting model with a device's timing: steps take time, and chosen prompts make them fail."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
from msgspec import Struct

from openinfer_contract import Command, CommandDone, CommandResult, Sleep, unpack_ids
from openinfer_engine import ExecutorDead, ExecutorInfo, LaunchSpec, StepFailed
from openinfer_scheduler import StepPlan, StepResult
from openinfer_testing._counting import CountingShape, ZeroCostExecutor


class ModelledOptions(Struct, frozen=True, kw_only=True):
    """Durations of steps, and the prompts that make a step fail.

    A trigger is a token id. A step fails in the trigger's way if one of its rows belongs to a
    request whose prompt begins with that id.
    """

    shape: CountingShape = CountingShape()
    step_s: float = 0.0
    token_s: float = 0.0
    """Seconds for each forwarded token, added to `step_s`."""
    start_s: float = 0.0
    """Seconds that it takes to create the executor."""
    row_failed_token: int | None = None
    step_failed_token: int | None = None
    dead_token: int | None = None
    hang_token: int | None = None
    """Trigger of a step that never completes."""


class ModelledExecutor(ZeroCostExecutor):
    """Counting executor whose steps complete later, one after the other, as on a device.

    It honours one command: `Sleep` returns the largest number of Python threads seen in any `wait`.

    Args:
        options: Durations and triggers.
        clock: Returns the time in seconds. In virtual time, `sleep` advances it.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        options: ModelledOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options or ModelledOptions()
        super().__init__(self._options.shape, device="modelled")
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()
        self._due: dict[int, float] = {}
        self._plans: dict[int, tuple[int, ...]] = {}
        self._max_threads = 0
        sleep(self._options.start_s)

    @property
    def info(self) -> ExecutorInfo:
        """Description of the executor. Constant while the executor lives."""
        return msgspec.structs.replace(self._info, commands=frozenset({"sleep"}))

    def launch(self, plan: StepPlan, /) -> int:
        """Runs the step. It is due `step_s`, plus `token_s` per token, after the step before it."""
        ticket = super().launch(plan)
        duration = self._options.step_s + self._options.token_s * plan.num_tokens
        self._free_at = max(self._free_at, self._clock()) + duration
        self._due[ticket] = self._free_at
        self._plans[ticket] = tuple(self._first_token(row.slot) for row in plan.rows)
        return ticket

    def wait(self, ticket: int, /) -> StepResult:
        """Waits until the step is due, then returns its result or raises the modelled failure."""
        self._max_threads = max(self._max_threads, len(sys._current_frames()))
        result = super().wait(ticket)
        first_tokens = self._plans.pop(ticket)
        delay = self._due.pop(ticket) - self._clock()
        if delay > 0:
            self._sleep(delay)
        if self._options.hang_token in first_tokens:
            self._sleep(3600.0)
        if self._options.dead_token in first_tokens:
            raise ExecutorDead("the modelled device is lost")
        if self._options.step_failed_token in first_tokens:
            raise StepFailed("the modelled step has failed")
        if self._options.row_failed_token in first_tokens:
            return _without(result, first_tokens, self._options.row_failed_token)
        return result

    def control(self, command: Command, /) -> CommandResult:
        """Returns the largest number of threads on `Sleep`; refuses other commands."""
        if isinstance(command, Sleep):
            return CommandDone(message=str(self._max_threads))
        return super().control(command)

    def _first_token(self, slot: int) -> int:
        return unpack_ids(self._rows[slot].request.prompt_token_ids[:4])[0]


def zero_cost_executor(spec: LaunchSpec) -> ZeroCostExecutor:
    """Makes a `ZeroCostExecutor`.

    An `ExecutorFactory`: `line_options` are fields of `CountingShape`.
    """
    return ZeroCostExecutor(msgspec.convert(spec.line_options, CountingShape))


def modelled_executor(spec: LaunchSpec) -> ModelledExecutor:
    """Makes a `ModelledExecutor`.

    An `ExecutorFactory`: `line_options` are fields of `ModelledOptions`.
    """
    return ModelledExecutor(msgspec.convert(spec.line_options, ModelledOptions))


def _without(result: StepResult, first_tokens: tuple[int, ...], trigger: int) -> StepResult:
    """Returns the result with the rows of triggering requests marked as failed."""
    failed = {i: "the modelled row has failed" for i, t in enumerate(first_tokens) if t == trigger}
    is_kept = np.array([i not in failed for i in range(len(first_tokens))], np.bool_)
    return replace(
        result,
        counts=np.where(is_kept, result.counts, 0).astype(np.int32),
        token_ids=result.token_ids[np.repeat(is_kept, result.counts)],
        logprobs={i: v for i, v in result.logprobs.items() if i not in failed},
        failed=failed,
    )
