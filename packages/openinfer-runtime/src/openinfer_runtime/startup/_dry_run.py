"""Lists every kernel that an executor's steps may launch, on a device that computes nothing.

The executor runs on torch's meta device, over a model with one layer of each kind. It runs through
every captured shape and through steps that are launched operation by operation. Layers of one kind
launch the same kernels, and shapes alone decide which.
"""

from collections.abc import Callable, Iterator
from typing import Never, TypeVar

import numpy as np
import torch

from openinfer_contract import (
    GenerateRequest,
    LogprobOptions,
    PromptLogprobOptions,
    Sampling,
    StopRules,
    pack_ids,
)
from openinfer_engine import ExecutorInfo, GrammarMasks
from openinfer_nn import StepInputs
from openinfer_runtime._executor import TorchExecutor
from openinfer_runtime._model import TorchModel
from openinfer_runtime.errors import CaptureFailed
from openinfer_runtime.startup._first_steps import plan_prefill
from openinfer_runtime.startup._memory_plan import allocate_cache
from openinfer_runtime.steps._step_inputs import blank_step
from openinfer_scheduler import StepPlan

T = TypeVar("T")

META = torch.device("meta")


class _DryExecutor(TorchExecutor):
    """Raises errors at once: no `wait` follows, and an incomplete list of kernels is useless."""

    def _failure(self, error: Exception, plan: StepPlan) -> Never:
        raise error

    def _stop_capturing(self, error: CaptureFailed) -> Never:
        raise error


def run_dry(model: TorchModel, info: ExecutorInfo) -> None:
    """Runs steps of every kind, for `openinfer_kernels.CompileAhead`.

    Args:
        model: Model on the meta device, with at least one layer of each kind.
        info: Info of the real executor, except for the device.

    Raises:
        Exception: Any error of a step.
    """
    (group,) = info.cache_groups
    cache = allocate_cache(
        model.cache_spec(),
        block_size=group.tokens_per_block,
        num_blocks=info.num_blocks + 1,
        device=META,
    )
    executor = _DryExecutor(model, cache, info, _run_once)
    # Draws come first: their kernel takes longest to compile.
    for step_id, (request, has_mask) in enumerate(_draws()):
        _prefill(executor, step_id, request, has_mask)
    while executor.prepare():
        pass
    for inputs in _uncaptured(info, group.tokens_per_block):
        with torch.inference_mode():
            model.forward(inputs, cache)


def _run_once(work: Callable[[], T]) -> Callable[[], T]:
    """Runs work once, as a `Capture` whose replays do nothing."""
    result = work()
    return lambda: result


def _uncaptured(info: ExecutorInfo, block_size: int) -> Iterator[StepInputs]:
    """Yields prompts of steps without captures: long ones, and prompts with logprobs."""
    num_tokens = 2
    while num_tokens <= (longest := min(info.max_num_batched_tokens, info.max_model_len)):
        for max_seqlen_k in {num_tokens, info.max_model_len}:
            yield blank_step(num_tokens, META, block_size=block_size, max_seqlen_k=max_seqlen_k)
        num_tokens = min(2 * num_tokens, longest) if num_tokens < longest else longest + 1


def _draws() -> Iterator[tuple[GenerateRequest, bool]]:
    """Yields a request for each kind of draw, and whether its row has a grammar's mask.

    Draws of rows with masks, and of prompts with logprobs, are not captured.
    """
    filtered = Sampling(top_k=2, top_p=0.5)
    controlled = Sampling(repetition_penalty=2.0)
    both = Sampling(top_k=2, top_p=0.5, repetition_penalty=2.0)
    for sampling in (Sampling(temperature=0.0), filtered, controlled, both):
        for has_mask, is_scored in ((False, False), (False, True), (True, False)):
            request = GenerateRequest(
                request_id="dry",
                prompt_token_ids=pack_ids([0, 0]),
                stop=StopRules(max_tokens=1),
                sampling=sampling,
                logprobs=LogprobOptions(num_top=1, mode="raw" if is_scored else "processed"),
                prompt_logprobs=PromptLogprobOptions() if is_scored else None,
            )
            yield request, has_mask


def _prefill(
    executor: TorchExecutor, step_id: int, request: GenerateRequest, has_mask: bool
) -> None:
    plan = plan_prefill(step_id, request, np.zeros(1, np.int32), has_mask)
    masks: GrammarMasks = {}
    if has_mask:
        masks = {0: np.zeros(-(-executor.info.vocab_size // 32), np.uint32)}
    executor.sample(executor.launch(plan), masks)
