"""The first steps of an executor, before it takes requests.

The first use of a kernel or library loads it, which takes time. A model that cannot run fails here
and not with the first request.
"""

import logging
import time

import numpy as np
import numpy.typing as npt

from openinfer_contract import GenerateRequest, Sampling, StopRules, pack_ids, unpack_ids
from openinfer_runtime._executor import TorchExecutor
from openinfer_scheduler import PlannedRow, RowStart, StepPlan

_PROMPT = (0, 0)

_logger = logging.getLogger(__name__)


def run_first_steps(executor: TorchExecutor) -> None:
    """Captures urgent steps, then runs a prefill and a decode step in slot 0.

    The first blocks of the cache are overwritten. That does no harm: every step writes the entries
    of a block before attention reads them.

    Raises:
        StepFailed: The model does not run.
        ExecutorDead: The device is lost.
    """
    _capture_urgent(executor)
    if executor.info.max_model_len > len(_PROMPT):
        _run_steps(executor)
    executor.begin_service()


def _run_steps(executor: TorchExecutor) -> None:
    info = executor.info
    request = GenerateRequest(
        request_id="first-steps",
        prompt_token_ids=pack_ids(_PROMPT),
        stop=StopRules(max_tokens=2),
        sampling=Sampling(),
    )
    num_blocks = -(-(len(_PROMPT) + 1) // info.cache_groups[0].tokens_per_block)
    decode = PlannedRow(
        slot=0,
        num_tokens=1,
        token_ids=None,
        new_block_ids=(np.zeros(0, np.int32),),
        is_sampled=True,
    )
    for plan in (
        plan_prefill(0, request, np.arange(num_blocks, dtype=np.int32)),
        StepPlan(step_id=1, ends=(), starts=(), rows=(decode,)),
        StepPlan(step_id=2, ends=(0,), starts=(), rows=()),
    ):
        ticket = executor.launch(plan)
        executor.sample(ticket, {})
        executor.wait(ticket)


def plan_prefill(
    step_id: int,
    request: GenerateRequest,
    block_ids: npt.NDArray[np.int32],
    needs_mask: bool = False,
) -> StepPlan:
    """Returns a step that starts a request in slot 0 and forwards its whole prompt."""
    token_ids = np.array(unpack_ids(request.prompt_token_ids), np.uint32)
    start = RowStart(
        slot=0,
        request=request,
        token_ids=token_ids,
        num_output_tokens=0,
        num_cached_tokens=0,
        block_ids=(block_ids,),
        seed=0,
    )
    row = PlannedRow(
        slot=0,
        num_tokens=len(token_ids),
        token_ids=token_ids,
        new_block_ids=(np.zeros(0, np.int32),),
        is_sampled=True,
        needs_mask=needs_mask,
    )
    return StepPlan(step_id=step_id, ends=(), starts=(start,), rows=(row,))


def _capture_urgent(executor: TorchExecutor) -> None:
    """Captures the shapes that the first requests may need."""
    started, num_captured = time.perf_counter(), 0
    while executor.prepare(is_urgent=True):
        num_captured += 1
    if num_captured:
        seconds = time.perf_counter() - started
        _logger.info("%d kinds of steps captured in %.2f s", num_captured, seconds)
