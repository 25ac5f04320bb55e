"""The interface between the step loop and the devices."""

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from openinfer_contract import Command, CommandResult
from openinfer_engine.trace._tracer import Tracer
from openinfer_kv_cache import CacheGroup
from openinfer_scheduler import StepPlan, StepResult

GrammarMasks = Mapping[int, npt.NDArray[np.uint32]]
"""A plan's masks by row index. A mask is an array of u32 words with one bit for each id of the
vocabulary; a set bit allows the id."""


Ability = Literal[
    "several_groups", "window_groups", "state_groups", "copies", "drafts", "adapters", "roles"
]
"""An optional part of plans. Without abilities an executor runs plans of one full cache group.

several_groups: rows with blocks of more than one cache group.
window_groups, state_groups: cache groups of these kinds.
copies: `StepPlan.copies_before` and `copies_after`.
drafts: decode rows that verify drafted tokens (`PlannedRow.num_drafts`).
adapters: rows with an adapter (`RowStart.adapter_slot`).
roles: prefill and decode on different engines (`SchedulerConfig.role`).
"""


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An executor's limits and abilities. Constant while the executor lives."""

    device: str
    dtype: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    max_num_seqs: int
    """Number of slots in the executor's tables, and upper bound of rows in one step."""
    max_num_batched_tokens: int
    depth: int
    """Upper bound of steps in flight: 1 if steps run on the host, 2 if they run on a device."""
    has_device: bool = False
    """Whether steps run on a device, so that the host's cores are idle meanwhile."""
    cache_groups: tuple[CacheGroup, ...]
    num_blocks: int
    """Number of blocks of the only cache group. With several groups: number of slabs of
    `plan_slabs(cache_groups)`."""
    model_fingerprint: str
    max_logprobs: int
    max_stop_token_ids: int = 64
    """Upper bound of stop ids of one request, besides the model's own."""
    abilities: frozenset[Ability]
    """Parts of plans that the executor runs; `assemble` refuses a configuration that needs more."""
    honoured: frozenset[str]
    """Names of the features in `openinfer_contract.FEATURES` that the executor supports."""
    commands: frozenset[str] = frozenset()
    """Names of the commands that the executor runs itself."""
    memory: tuple[tuple[str, int], ...] = ()
    """The memory plan as (purpose, bytes), for the log."""


class Executor(Protocol):
    """Runs steps on devices. The step thread calls every method.

    `launch` and `sample` enqueue work and return; `wait` blocks. Steps are launched in the order of
    their ids and waited for in the same order. At most `info.depth` steps are launched and not yet
    waited for.

    The engine process exits right after `close` returns. It runs no `atexit` hooks and joins no
    threads, so `close` must write and free everything.
    """

    @property
    def info(self) -> ExecutorInfo:
        """The executor's limits and abilities. Constant while the executor lives."""

    def launch(self, plan: StepPlan, /) -> int:
        """Starts a step's forward pass and returns its ticket, which is the step id."""

    def sample(self, ticket: int, masks: GrammarMasks, /) -> None:
        """Starts sampling for a launched step. Called once for each step, in order.

        Args:
            ticket: the step.
            masks: the allowed ids of the rows with a grammar; empty if no row has one.
        """

    def wait(self, ticket: int, /) -> StepResult:
        """Blocks until the step is done and returns its samples.

        Raises:
            StepFailed: nothing of this step may be used. The executor continues with later steps.
            ExecutorDead: the executor cannot run any further step.
        """

    def prepare(self) -> bool:
        """Does optional work that makes later steps faster, for tens of milliseconds at most.

        The loop calls it while the engine is idle, for example to capture CUDA graphs. Correctness
        must not depend on it.

        Returns:
            Whether a further call may have more work to do.
        """

    def control(self, command: Command, /) -> CommandResult:
        """Runs one of `info.commands` while no step is in flight."""

    def close(self) -> None:
        """Frees the devices. Idempotent."""


@runtime_checkable
class CompilingExecutor(Protocol):
    """An executor that counts the kernels compiled while requests were waiting."""

    @property
    def num_compilations(self) -> int:
        """Kernels compiled since the executor was ready. The step thread reads it."""


@runtime_checkable
class TracedExecutor(Protocol):
    """An executor that can add the device's view of its steps to a trace."""

    def trace(self, tracer: Tracer | None, /) -> None:
        """Reports all further steps to `tracer`, with their kernels if `tracer.has_kernels`.

        None ends the reports; everything known has been reported when this returns. The step thread
        calls it. It never raises.
        """
