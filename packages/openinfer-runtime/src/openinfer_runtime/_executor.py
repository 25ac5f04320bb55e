"""The executor that runs plans with torch, on the CPU or on one CUDA device.

On a CUDA device every call except `wait` enqueues work and returns. The token that a row sampled
last stays on the device, where the next step reads it. One small copy per step brings token ids
and logprobs to the host.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from openinfer_contract import (
    Command,
    CommandFailed,
    CommandResult,
    GenerateRequest,
    command_name,
)
from openinfer_engine import ExecutorDead, ExecutorInfo, GrammarMasks, StepFailed, Tracer
from openinfer_kernels import PrefixGroup, num_compiled_kernels
from openinfer_nn import CacheView, StepInputs
from openinfer_runtime._model import TorchModel
from openinfer_runtime.errors import CaptureFailed
from openinfer_runtime.graphs._capture import Capture
from openinfer_runtime.graphs._step_graphs import Logits, StepGraphs
from openinfer_runtime.steps._launched_step import LaunchedStep
from openinfer_runtime.steps._prefix_groups import PrefixGroups, PrefixInput, SharingThresholds
from openinfer_runtime.steps._prompt_logprobs import score_prompts
from openinfer_runtime.steps._row_table import RowTable
from openinfer_runtime.steps._step_buffers import HostRows, StepBuffers
from openinfer_runtime.steps._step_shapes import StepShapes
from openinfer_runtime.steps._transfer import download
from openinfer_runtime.trace._device_trace import DeviceTrace
from openinfer_sampler import SampledTokens, Sampler, SamplerError, upload
from openinfer_scheduler import RowStart, StepPlan, StepResult

_logger = logging.getLogger(__name__)


class TorchExecutor:
    """`openinfer_engine.Executor` over a model and an arena. Use from one thread.

    On a CUDA device at most two steps are in flight: while one runs, the next is enqueued.

    Args:
        model: Model with its weights.
        cache: The model's view of the arena.
        info: Limits and identity; `info.depth` is 1 on a CPU.
        capture: Captures whole steps, see `StepGraphs`; None launches every operation of every
            step.
    """

    def __init__(
        self,
        model: TorchModel,
        cache: CacheView,
        info: ExecutorInfo,
        capture: Capture | None = None,
    ) -> None:
        (group,) = info.cache_groups
        assert group.kind == "full", "the row table holds one full group"
        self._info = info
        self._model = model
        self._cache = cache
        self._device = torch.device(info.device)
        with torch.inference_mode():
            self._sampler = Sampler(
                num_slots=info.max_num_seqs + 1,  # one more for padding
                vocab_size=info.vocab_size,
                device=self._device,
                eos_token_ids=info.eos_token_ids,
                max_stop_token_ids=info.max_stop_token_ids,
            )
            self._rows = RowTable(
                num_slots=info.max_num_seqs,
                max_model_len=info.max_model_len,
                block_size=cache.block_size,
                padding_block=info.num_blocks,
                last_token=self._sampler.last_token,
                device=self._device,
            )
            self._graphs = None if capture is None else self._step_graphs(capture)
        self._prefix_groups = None
        if capture is not None or self._device.type == "cuda":
            # Ops for the CPU do not share prefixes.
            self._prefix_groups = PrefixGroups(
                *self._rows.host_blocks, cache.block_size, SharingThresholds()
            )
        self._steps: dict[int, LaunchedStep] = {}
        self._refused: dict[int, str] = {}
        self._prompt_requests: dict[int, GenerateRequest] = {}
        self._death: ExecutorDead | None = None
        self._trace: DeviceTrace | None = None
        self.begin_service()

    def _step_graphs(self, capture: Capture) -> StepGraphs:
        info = self._info
        return StepGraphs(
            self._model,
            self._cache,
            self._rows,
            self._sampler,
            StepShapes(max_num_seqs=info.max_num_seqs, max_num_tokens=info.max_num_batched_tokens),
            capture,
            vocab_size=info.vocab_size,
            dtype=getattr(torch, info.dtype),
            device=self._device,
        )

    @property
    def info(self) -> ExecutorInfo:
        """Constant while the executor lives."""
        return self._info

    @property
    def num_compilations(self) -> int:
        """Kernels compiled since `begin_service`."""
        return num_compiled_kernels() - self._num_compiled

    def begin_service(self) -> None:
        """Starts to count compilations: from now on requests wait for them."""
        self._num_compiled = num_compiled_kernels()

    def prepare(self, *, is_urgent: bool = False) -> bool:
        """Captures one more shape before its first use, with no step in flight.

        If the capture fails, the executor launches every operation of every step from then on.

        Args:
            is_urgent: Captures urgent shapes alone, which the first requests may need.

        Returns:
            Whether there may be more shapes.
        """
        if self._graphs is None:
            return False
        try:
            with torch.inference_mode():
                return self._graphs.capture_next(is_urgent=is_urgent)
        except CaptureFailed as error:
            self._stop_capturing(error)
            return False

    def _stop_capturing(self, error: CaptureFailed) -> None:
        _logger.warning("steps are not captured, so decoding is slower: %s", error, exc_info=error)
        self._graphs = None

    def launch(self, plan: StepPlan, /) -> int:
        """Starts a step's forward pass; `wait` raises its errors."""
        step = self._steps[plan.step_id] = LaunchedStep(plan, error=self._death)
        if step.error is not None:
            return plan.step_id
        trace = self._trace
        try:
            if trace is not None:
                trace.begin()
            with torch.inference_mode():
                self._forward(step)
            if trace is not None:
                trace.end(plan.step_id, "forward")
        except Exception as error:
            step.error = self._failure(error, plan)
        return plan.step_id

    def sample(self, ticket: int, masks: GrammarMasks, /) -> None:
        """Starts sampling; `wait` raises its errors."""
        step = self._steps[ticket]
        if step.error is not None or step.rows is None:
            return
        trace = self._trace
        try:
            if trace is not None:
                trace.begin()
            with torch.inference_mode():
                self._draw(step, step.rows, masks)
            if trace is not None:
                trace.end(ticket, "sample")
        except Exception as error:
            step.error = self._failure(error, step.plan)

    def wait(self, ticket: int, /) -> StepResult:
        """Blocks until the step is done.

        Raises:
            StepFailed: No result of the step may be used. Later steps run.
            ExecutorDead: The device is lost.
        """
        step = self._steps.pop(ticket)
        if step.error is None:
            try:
                result = step.read(self._refused)
                if self._trace is not None:
                    self._trace.report()
                return result
            except Exception as error:
                step.error = self._failure(error, step.plan)
        raise step.error

    def trace(self, tracer: Tracer | None, /) -> None:
        """Reports times of forward passes and draws to a tracer; None stops that. Never raises."""
        earlier, self._trace = self._trace, None
        if earlier is not None:
            earlier.close()
        if tracer is not None:
            self._trace = DeviceTrace(tracer, self._device)

    def control(self, command: Command, /) -> CommandResult:
        """Rejects the command: this executor has none of its own."""
        message = f"{command_name(command)} is not supported by this executor"
        return CommandFailed(kind="unsupported", message=message)

    def close(self) -> None:
        """Frees weights and arena. Every later call fails. Idempotent."""
        if self._death is None:
            self._death = ExecutorDead("the executor is closed")
        self._steps.clear()
        for name in ("_graphs", "_model", "_cache", "_rows", "_sampler"):
            self.__dict__.pop(name, None)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _forward(self, step: LaunchedStep) -> None:
        plan = step.plan
        assert not plan.copies_before, "this executor copies no blocks"
        assert not plan.copies_after, "this executor copies no blocks"
        for slot in plan.ends:
            self._prompt_requests.pop(slot, None)
        for start in plan.starts:
            self._prompt_requests.pop(start.slot, None)
            if start.request.prompt_logprobs is not None:
                self._prompt_requests[start.slot] = start.request
        try:
            # The groups must see every plan, also one without rows, to follow starts and ends.
            groups = () if self._prefix_groups is None else self._prefix_groups.of(plan)
            if plan.rows:
                self._forward_rows(step, plan, groups)
        finally:
            # The draw needs the parameters, so they are set while the forward pass runs.
            for start in plan.starts:
                self._set_sampling(start)

    def _forward_rows(
        self, step: LaunchedStep, plan: StepPlan, groups: Sequence[PrefixGroup]
    ) -> None:
        graphs, scored = self._graphs, self._scored_prompts(plan)
        shape = graphs.shape_of(plan, groups) if graphs is not None and not scored else None
        if graphs is not None and shape is not None:
            try:
                step.rows, step.logits = graphs.forward(plan, shape, groups)
                return
            except CaptureFailed as error:
                self._stop_capturing(error)
        step.rows, buffers = self._rows.enter_exact(plan)
        self._rows.advance(buffers)
        hidden = self._model.forward(self._with_shared(buffers.inputs, groups), self._cache)
        if scored:
            step.prompts = score_prompts(self._model, self._sampler, hidden, step.rows, scored)
        if len(step.rows.sampled_rows):
            step.logits = self._exact_logits(hidden, buffers, len(step.rows.sampled_rows))

    def _exact_logits(self, hidden: torch.Tensor, buffers: StepBuffers, num_sampled: int) -> Logits:
        """Computes the logits of the rows that are sampled, and of no others."""
        tensors = buffers.tensors
        picked = [tensors.logits_indices, tensors.draw_slots, tensors.draw_positions]
        if num_sampled < len(tensors.draw_slots):
            index = buffers.sampled_rows[:num_sampled]
            picked = [tensor.index_select(0, index) for tensor in picked]
        indices, slots, positions = picked
        scores = self._model.logits(hidden.index_select(0, indices))
        return Logits(scores=scores, slots=slots, positions=positions)

    def _with_shared(self, inputs: StepInputs, groups: Sequence[PrefixGroup]) -> StepInputs:
        if not groups:
            return inputs
        num_kv_heads = self._cache.spec.planes[0].num_heads
        prefixes = PrefixInput(len(inputs.seq_lens), num_kv_heads, self._device)
        prefixes.fill(groups)
        return replace(inputs, shared=prefixes.shared)

    def _scored_prompts(self, plan: StepPlan) -> dict[int, GenerateRequest]:
        """Returns the requests that want logprobs of prompt tokens of this step, by row."""
        scored: dict[int, GenerateRequest] = {}
        if not self._prompt_requests:
            return scored
        for index, row in enumerate(plan.rows):
            if row.token_ids is None:  # a decode row: its whole prompt has been scored
                self._prompt_requests.pop(row.slot, None)
            elif row.slot in self._prompt_requests:
                scored[index] = self._prompt_requests[row.slot]
        return scored

    def _set_sampling(self, start: RowStart) -> None:
        self._refused.pop(start.slot, None)
        try:
            self._sampler.set(
                start.slot,
                start.request,
                seed=start.seed,
                token_ids=start.token_ids,
                num_output_tokens=start.num_output_tokens,
            )
        except (SamplerError, ValueError) as error:
            # Other requests of the step must not fail because of this one.
            self._refused[start.slot] = str(error)

    def _draw(self, step: LaunchedStep, rows: HostRows, masks: GrammarMasks) -> None:
        parts = [scores.packed.flatten() for scores in step.prompts]
        if step.logits is not None and len(rows.sampled_rows):
            step.sampled = sampled = self._sampled(step, rows, step.logits, masks)
            parts.append(sampled.packed)
        step.logits = None
        if parts:
            step.packed = download(torch.cat(parts) if len(parts) > 1 else parts[0])

    def _sampled(
        self, step: LaunchedStep, rows: HostRows, logits: Logits, masks: GrammarMasks
    ) -> SampledTokens:
        if logits.sampled_rows is not None and not masks and self._graphs is not None:
            needs = self._sampler.capturable_needs(rows.sampled_slots)
            try:
                if needs is not None:
                    step.drawn_at = rows.sampled_rows
                    return self._graphs.draw(logits, rows, needs)
            except CaptureFailed as error:
                self._stop_capturing(error)
        logits = logits.sampled(len(rows.sampled_rows))
        sampled = self._sampler.sample(
            logits.scores,
            rows.sampled_slots,
            logits.positions,
            device_slots=logits.slots,
            masks=self._masks(rows, masks),
        )
        step.drawn_at = np.arange(len(rows.sampled_rows))
        return sampled

    def _masks(
        self, rows: HostRows, masks: GrammarMasks
    ) -> tuple[npt.NDArray[np.int64], torch.Tensor] | None:
        if not masks:
            return None
        at = {int(row): index for index, row in enumerate(rows.sampled_rows)}
        index = np.array([at[row] for row in masks], np.int64)
        bits = np.stack(list(masks.values())).view(np.int32)
        return index, upload(bits, self._device)

    def _failure(self, error: Exception, plan: StepPlan) -> StepFailed | ExecutorDead:
        """Converts an exception to an error of the engine: one lost step, or a dead device."""
        _logger.error("step %d has failed", plan.step_id, exc_info=error)
        if isinstance(error, torch.OutOfMemoryError):
            return StepFailed(
                f"out of device memory in a step of {plan.num_tokens} tokens; lower "
                "--max-num-batched-tokens, --max-num-seqs or --gpu-memory-utilization"
            )
        if isinstance(error, torch.AcceleratorError):
            # CUDA errors are sticky: every later call on the device fails too.
            self._death = ExecutorDead("the device has reported an error, see the engine's log")
            return self._death
        return StepFailed(f"the forward pass has failed with {type(error).__name__}")
