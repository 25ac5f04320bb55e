"""A step between launch and wait, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from openinfer_contract import TokenLogprobs
from openinfer_engine import ExecutorDead, StepFailed
from openinfer_runtime.graphs._step_graphs import Logits
from openinfer_runtime.steps._prompt_logprobs import PromptScores
from openinfer_runtime.steps._step_buffers import HostRows, Indices
from openinfer_runtime.steps._transfer import Download
from openinfer_sampler import HostTokens, SampledTokens
from openinfer_scheduler import StepPlan, StepResult


@dataclass(slots=True)
class LaunchedStep:
    """State of one step, filled by the step thread.

    Attributes:
        plan: Plan of the step.
        rows: Rows of the plan; None if it has none, or if its forward pass was not launched.
        logits: Logits, until the draw.
        prompts: Logprobs of prompt tokens.
        sampled: Drawn tokens; None if no row is sampled.
        drawn_at: [num_sampled]: row of each sampled row in `sampled`.
        packed: Logprobs of prompts, then draws, on their way to the host.
        error: Error that `wait` raises.
    """

    plan: StepPlan
    rows: HostRows | None = None
    logits: Logits | None = None
    prompts: list[PromptScores] = field(default_factory=list)
    sampled: SampledTokens | None = None
    drawn_at: Indices | None = None
    packed: Download | None = None
    error: StepFailed | ExecutorDead | None = None

    def read(self, refused: Mapping[int, str]) -> StepResult:
        """Waits for the device and returns the step's result.

        Args:
            refused: Reason why the sampling parameters of a slot's request were refused, by slot.
        """
        packed = self.packed.wait() if self.packed is not None else np.zeros(0, np.int32)
        prompts: dict[int, TokenLogprobs] = {}
        begin = 0
        for scores in self.prompts:
            end = begin + scores.packed.numel()
            prompts[scores.row] = scores.unpack(packed[begin:end])
            begin = end
        result = StepResult(
            step_id=self.plan.step_id,
            counts=np.zeros(len(self.plan.rows), np.int32),
            token_ids=np.zeros(0, np.uint32),
            prompt_logprobs=prompts,
        )
        if self.rows is None or self.sampled is None or self.drawn_at is None:
            return result
        tokens = self.sampled.unpack(packed[begin:])
        result.counts[self.rows.sampled_rows] = 1
        if tokens.failed or tokens.logprobs or refused:
            return _with_more(result, tokens, self.rows, self.drawn_at, refused)
        return replace(result, token_ids=tokens.token_ids[self.drawn_at])


def _with_more(
    result: StepResult,
    tokens: HostTokens,
    rows: HostRows,
    drawn_at: Indices,
    refused: Mapping[int, str],
) -> StepResult:
    """Returns the result with tokens, logprobs and failed rows."""
    sampled_rows = rows.sampled_rows
    row_of = dict(zip(drawn_at.tolist(), sampled_rows.tolist(), strict=True))
    failed = {row_of[at]: why for at, why in tokens.failed.items() if at in row_of}
    refusals = _refusals(rows, refused)
    failed |= refusals
    exhausted = {row_of[at] for at in tokens.exhausted if at in row_of}
    result.counts[list(failed)] = 0
    return replace(
        result,
        token_ids=tokens.token_ids[drawn_at[result.counts[sampled_rows] == 1]],
        logprobs={
            row_of[at]: logprobs
            for at, logprobs in tokens.logprobs.items()
            if row_of[at] not in failed
        },
        failed=failed,
        exhausted=frozenset(exhausted.difference(refusals)),
    )


def _refusals(rows: HostRows, refused: Mapping[int, str]) -> dict[int, str]:
    """Returns the sampled rows whose parameters were refused when they started, with reasons."""
    if not refused:
        return {}
    slots = rows.sampled_slots.tolist()
    return {
        row: refused[slot]
        for row, slot in zip(rows.sampled_rows.tolist(), slots, strict=True)
        if slot in refused
    }
