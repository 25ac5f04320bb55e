"""The seam between the loop and the devices."""

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
"""By row index of the plan: a bit per vocabulary id, set where the id is allowed."""


Ability = Literal[
    "several_groups", "window_groups", "state_groups", "copies", "drafts", "adapters", "roles"
]
"""A part of a plan that not every executor runs; every executor runs plans of one full cache group.

several_groups: rows with blocks of more than one cache group.
window_groups, state_groups: cache groups of these kinds.
copies: `StepPlan.copies_before` and `copies_after`.
drafts: decode rows that verify drafted tokens (`PlannedRow.num_drafts`).
adapters: rows with an adapter (`RowStart.adapter_slot`).
roles: prefill and decode on different engines (`SchedulerConfig.role`).
"""


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor can hold and do. Constant while it lives."""

    device: str
    dtype: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    max_num_seqs: int
    """Number of slots."""
    max_num_batched_tokens: int
    depth: int
    """Plans that may be in flight: 1 where the step runs on the host, 2 on a device."""
    has_device: bool = False
    """Whether steps run on something else than the host's cores, which are idle meanwhile."""
    cache_groups: tuple[CacheGroup, ...]
    num_blocks: int
    """Blocks of the cache group; of several groups, slabs of `plan_slabs(cache_groups)`."""
    model_fingerprint: str
    max_logprobs: int
    max_stop_token_ids: int = 64
    """Stop ids of one request at most, besides the model's own."""
    abilities: frozenset[Ability]
    """Parts of plans that the executor runs; `assemble` refuses a configuration that needs more."""
    honoured: frozenset[str]
    """The names of `openinfer_contract.FEATURES` that the sampling side honours."""
    commands: frozenset[str] = frozenset()
    """Commands the executor itself handles."""
    memory: tuple[tuple[str, int], ...] = ()
    """The memory plan as (what, bytes), for the start log."""


class Executor(Protocol):
    """Runs plans on devices. Every method is called from the step thread only.

    `launch` and `sample` enqueue and return; `wait` blocks. Plans are launched in step order and
    waited for in the same order, at most `info.depth` launched and not yet waited for.

    All is done when `close` returns: an engine process then ends at once. It runs no `atexit` hooks
    and waits for no thread, so what an executor has to write or to give back it does in `close`.
    """

    @property
    def info(self) -> ExecutorInfo:
        """Constant while the executor lives."""

    def launch(self, plan: StepPlan, /) -> int:
        """Starts a step's forward pass and returns its ticket (the step id)."""

    def sample(self, ticket: int, masks: GrammarMasks, /) -> None:
        """Starts sampling for a launched step. Called once for each, in order."""

    def wait(self, ticket: int, /) -> StepResult:
        """Blocks until the step is done.

        Raises:
            StepFailed: nothing of the step may be used; the executor goes on with later steps.
            ExecutorDead: the executor is of no further use.
        """

    def prepare(self) -> bool:
        """Does a little, tens of milliseconds at most, that later steps gain from.

        Called while no step is in flight and none is asked for; nothing may depend on it.

        Returns:
            Whether there may be more of it.
        """

    def control(self, command: Command, /) -> CommandResult:
        """Runs one of `info.commands`, with no step in flight."""

    def close(self) -> None:
        """Frees the devices. Idempotent."""


@runtime_checkable
class CompilingExecutor(Protocol):
    """An executor that knows whether its steps had to wait for a compiler."""

    @property
    def num_compilations(self) -> int:
        """Kernels compiled since it was ready to step; only grows. From the step thread."""


@runtime_checkable
class TracedExecutor(Protocol):
    """An executor that can say when its steps ran on the device. Called from the step thread."""

    def trace(self, tracer: Tracer | None, /) -> None:
        """From now on tells `tracer` of its steps, and of their kernels if it asks for them.

        None: no more; what is known has been told when this returns. Never raises.
        """
