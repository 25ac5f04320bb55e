"""Executor of a counting model: tests know every output token without a forward pass.

A greedy request gets t + 1 after token t, modulo the vocabulary. A sampled request gets t + 1 + d,
where d in {0, 1, 2} depends on (seed, position) alone. Tests therefore know the tokens of every
stream, even after a preemption or a resumption.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from openinfer_contract import (
    Command,
    CommandFailed,
    CommandResult,
    GenerateRequest,
    TokenLogprobs,
    pack_floats,
    pack_ids,
)
from openinfer_engine import ExecutorInfo, GrammarMasks
from openinfer_kv_cache import CacheGroup, Plane
from openinfer_scheduler import PlannedRow, RowStart, StepPlan, StepResult

_LOGPROB = -0.25


class CountingShape(Struct, frozen=True, kw_only=True):
    """Sizes of a counting model."""

    vocab_size: int = 1000
    """The last id is the EOS id."""
    max_model_len: int = 1024
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 256
    depth: int = 2
    has_device: bool = False
    num_blocks: int = 256
    tokens_per_block: int = 16

    def info(self, device: str) -> ExecutorInfo:
        """Returns the `ExecutorInfo` of an executor of this shape."""
        group = CacheGroup(
            name="full",
            tokens_per_block=self.tokens_per_block,
            planes=(Plane(name="count", bytes_per_token=4),),
        )
        return ExecutorInfo(
            device=device,
            dtype="none",
            vocab_size=self.vocab_size,
            eos_token_ids=(self.vocab_size - 1,),
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            depth=self.depth,
            has_device=self.has_device,
            cache_groups=(group,),
            num_blocks=self.num_blocks,
            model_fingerprint="counting",
            max_logprobs=8,
            abilities=frozenset(),
            honoured=frozenset({"sampling.seed", "logprobs"}),
        )


def next_token(previous: int, position: int, seed: int | None, vocab_size: int) -> int:
    """Returns the counting model's token at `position`, after `previous`.

    Greedy if `seed` is None.
    """
    if seed is None:
        return (previous + 1) % vocab_size
    mixed = (seed * 0x9E3779B97F4A7C15 + position * 0xC2B2AE3D27D4EB4F) % 2**64
    return (previous + 1 + (mixed >> 32) % 3) % vocab_size


@dataclass(slots=True)
class _Row:
    """State of one sequence, as a device would hold it."""

    request: GenerateRequest
    seed: int | None
    num_tokens: int
    """Number of positions with cache entries after the steps launched so far."""
    last_token: int
    """The newest known token, sampled or given."""
    num_blocks: int


class ZeroCostExecutor:
    """Executor of the counting model. A step's result is ready at launch; every plan is checked.

    Args:
        shape: Sizes of the model and the cache.
        device: Name of the device, as `info` reports it.
    """

    def __init__(self, shape: CountingShape | None = None, *, device: str = "none") -> None:
        self._shape = shape or CountingShape()
        self._info = self._shape.info(device)
        self._rows: dict[int, _Row] = {}
        self._results: deque[StepResult] = deque()
        self._unsampled: deque[int] = deque()
        self._num_steps = 0
        self._is_closed = False

    @property
    def info(self) -> ExecutorInfo:
        """Description of the executor. Constant while the executor lives."""
        return self._info

    def launch(self, plan: StepPlan, /) -> int:
        """Runs the step at once and keeps its result for `wait`."""
        assert not self._is_closed, "a step was launched on a closed executor"
        assert len(self._results) < self._info.depth, "more steps in flight than the depth"
        for slot in plan.ends:
            del self._rows[slot]
        for start in plan.starts:
            self._start(start)
        self._results.append(self._run(plan))
        self._unsampled.append(plan.step_id)
        return plan.step_id

    def sample(self, ticket: int, masks: GrammarMasks, /) -> None:
        """Records that the step was sampled."""
        assert self._unsampled.popleft() == ticket, "steps must be sampled in launch order"

    def wait(self, ticket: int, /) -> StepResult:
        """Returns the result of the oldest step."""
        result = self._results.popleft()
        assert result.step_id == ticket, "steps must be waited for in launch order"
        assert ticket not in self._unsampled, "a step was waited for before it was sampled"
        return result

    def prepare(self) -> bool:
        """Returns False: there is nothing to prepare."""
        return False

    def control(self, command: Command, /) -> CommandResult:
        """Refuses every command as unsupported."""
        return CommandFailed(kind="unsupported", message="the counting model takes no commands")

    def close(self) -> None:
        """Closes the executor. Idempotent."""
        self._is_closed = True

    def _start(self, start: RowStart) -> None:
        assert start.slot not in self._rows, f"slot {start.slot} is already in use"
        assert 0 <= start.slot < self._info.max_num_seqs, f"there is no slot {start.slot}"
        is_greedy = start.request.sampling.is_greedy
        self._rows[start.slot] = _Row(
            request=start.request,
            seed=None if is_greedy else start.seed,
            num_tokens=start.num_cached_tokens,
            last_token=int(start.token_ids[start.num_cached_tokens - 1]),
            num_blocks=len(start.block_ids[0]),
        )

    def _run(self, plan: StepPlan) -> StepResult:
        assert plan.num_tokens <= self._info.max_num_batched_tokens, (
            "a plan exceeds the token budget of a step"
        )
        counts = np.zeros(len(plan.rows), np.int32)
        tokens: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        for index, planned in enumerate(plan.rows):
            row = self._rows[planned.slot]
            self._forward(row, planned)
            if planned.is_sampled:
                counts[index] = 1
                row.last_token = next_token(
                    row.last_token, row.num_tokens, row.seed, self._shape.vocab_size
                )
                tokens.append(row.last_token)
                if row.request.logprobs is not None:
                    num_top = row.request.logprobs.num_top
                    logprobs[index] = self._logprobs(row.last_token, num_top)
        return StepResult(
            step_id=plan.step_id,
            counts=counts,
            token_ids=np.array(tokens, np.uint32),
            logprobs=logprobs,
        )

    def _forward(self, row: _Row, planned: PlannedRow) -> None:
        if planned.token_ids is not None:
            assert len(planned.token_ids) == planned.num_tokens
            row.last_token = int(planned.token_ids[-1])
        row.num_tokens += planned.num_tokens
        row.num_blocks += len(planned.new_block_ids[0])
        capacity = row.num_blocks * self._shape.tokens_per_block
        assert row.num_tokens <= capacity, "a row was planned without the blocks it needs"

    def _logprobs(self, token: int, num_top: int) -> TokenLogprobs:
        top = [(token + i) % self._shape.vocab_size for i in range(num_top)]
        return TokenLogprobs(
            sampled=pack_floats([_LOGPROB]),
            ranks=pack_ids([1]),
            num_top=num_top,
            top_ids=pack_ids(top),
            top=pack_floats([_LOGPROB - i for i in range(num_top)]),
        )
