"""Whole steps for the price of two launches: captured once for each shape, then replayed.

A step has two captures, so that the number of captures is the sum of the kinds of each and not
their product. The first is the forward pass of a shape, from the row tables to logits. The second
is the draw of a number of rows with the controls that they need, from logits to the tables. All
captures share their buffers.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from openinfer_kernels import PrefixGroup
from openinfer_nn import CacheView
from openinfer_runtime._model import TorchModel
from openinfer_runtime.errors import CaptureFailed
from openinfer_runtime.graphs._capture import Capture
from openinfer_runtime.steps._prefix_groups import PrefixInput
from openinfer_runtime.steps._row_table import RowTable
from openinfer_runtime.steps._step_buffers import HostRows, StepBuffers
from openinfer_runtime.steps._step_shapes import StepShape, StepShapes
from openinfer_sampler import CAPTURED_NEEDS, SampledTokens, Sampler
from openinfer_scheduler import StepPlan

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """Logits of a step, and the slot and position of each row's draw.

    Attributes:
        scores: [n, vocab_size], in the model's dtype.
        slots: [n], int64: slot of each row; the padding slot where no token is drawn.
        positions: [n], int64: sequence index of the token to draw.
        sampled_rows: [>= num_sampled], int64, on the device: rows that are sampled, if `scores`
            also has rows that are not sampled or padding; None if every row is sampled.
    """

    scores: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    sampled_rows: torch.Tensor | None = None

    def sampled(self, num_sampled: int) -> "Logits":
        """Returns copies of the rows that are sampled."""
        if self.sampled_rows is None:
            return self
        index = self.sampled_rows[:num_sampled]
        return Logits(
            scores=self.scores.index_select(0, index),
            slots=self.slots.index_select(0, index),
            positions=self.positions.index_select(0, index),
        )


@dataclass(frozen=True, slots=True)
class _Forward:
    buffers: StepBuffers
    prefixes: PrefixInput | None
    logits: Logits
    run: Callable[[], None]


class StepGraphs:
    """The captured steps of one executor. Use from the step thread.

    Args:
        model: Model whose forward pass is captured.
        cache: Cache that the forward pass writes to.
        rows: Table of rows that a step reads and advances.
        sampler: Draws tokens.
        shapes: Shapes of the steps.
        capture: Captures a function that enqueues work.
        vocab_size: Columns of the logits.
        dtype: Type of the logits.
        device: Device of the steps.
    """

    def __init__(
        self,
        model: TorchModel,
        cache: CacheView,
        rows: RowTable,
        sampler: Sampler,
        shapes: StepShapes,
        capture: Capture,
        *,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._model = model
        self._cache = cache
        self._rows = rows
        self._sampler = sampler
        self._shapes = shapes
        self._capture = capture
        self._device = device
        num_rows = shapes.max_num_seqs
        self._scores = torch.zeros((num_rows, vocab_size), dtype=dtype, device=device)
        rows.reserve(max(shapes.max_num_tokens, num_rows), num_rows)
        self._uncaptured = deque(shapes.all())
        self._forwards: dict[StepShape, _Forward] = {}
        self._draws: dict[tuple[int, int], Callable[[], SampledTokens]] = {}

    def shape_of(self, plan: StepPlan, groups: Sequence[PrefixGroup] = ()) -> StepShape | None:
        """Returns the shape that a plan with rows is padded to; None if no shape holds it."""
        return self._shapes.of(plan, shares_prefixes=bool(groups))

    def forward(
        self, plan: StepPlan, shape: StepShape, groups: Sequence[PrefixGroup] = ()
    ) -> tuple[HostRows, Logits]:
        """Enqueues the forward pass of a plan.

        Args:
            plan: Plan with rows.
            shape: Shape that the plan is padded to.
            groups: Rows that share blocks, as given to `shape_of`.

        Returns:
            The plan's rows, and logits of every row of the plan and of padding. The logits are
            valid until the next forward pass.

        Raises:
            CaptureFailed: The shape is new, and its capture fails.
        """
        forward = self._forwards.get(shape) or self.capture_forward(shape)
        rows = self._rows.enter(plan, forward.buffers)
        if forward.prefixes is not None:
            forward.prefixes.fill(groups)
        forward.run()
        return rows, forward.logits

    def draw(self, logits: Logits, rows: HostRows, needs: int) -> SampledTokens:
        """Enqueues the draw of a step, and after it the logprobs that its rows ask for.

        Args:
            logits: Result of the latest `forward`.
            rows: Result of the latest `forward`.
            needs: Result of `Sampler.capturable_needs`.

        Raises:
            CaptureFailed: The draw is new, and its capture fails.
        """
        num_rows = len(logits.slots)
        draw = self._draws.get((num_rows, needs)) or self.capture_draw(num_rows, needs)
        return self._sampler.add_logprobs(
            draw(),
            logits.scores,
            logits.slots,
            logits.positions,
            needs,
            slots=rows.sampled_slots,
            at=rows.sampled_rows,
        )

    def capture_next(self, *, is_urgent: bool = False) -> bool:
        """Captures the next shape that no step has used yet, and its draws.

        Args:
            is_urgent: Stops at the first shape that is not urgent.

        Returns:
            Whether a shape was captured.
        """
        while self._uncaptured:
            shape = self._uncaptured[0]
            if is_urgent and not self._shapes.is_urgent(shape):
                return False
            self._uncaptured.popleft()
            if shape not in self._forwards:
                self.capture_forward(shape)
                for needs in CAPTURED_NEEDS:
                    if (shape.num_seqs, needs) not in self._draws and self._sampler.is_capturable:
                        self.capture_draw(shape.num_seqs, needs)
                return True
        return False

    def capture_forward(self, shape: StepShape) -> _Forward:
        """Captures the forward pass of a shape.

        Raises:
            CaptureFailed: The device refuses.
        """
        buffers = self._rows.captured_step(shape)
        logits = replace(self._logits(shape.num_seqs), sampled_rows=buffers.sampled_rows)
        prefixes = None
        inputs = buffers.inputs
        if shape.shares_prefixes:
            num_kv_heads = self._cache.spec.planes[0].num_heads
            prefixes = PrefixInput(shape.num_seqs, num_kv_heads, self._device)
            inputs = replace(inputs, shared=prefixes.shared)

        def work() -> None:
            self._rows.advance(buffers)
            hidden = self._model.forward(inputs, self._cache)
            if not shape.is_decode:  # a decode step wants the logits of every token
                hidden = hidden.index_select(0, inputs.logits_indices)
            self._model.logits(hidden, logits.scores)

        forward = self._forwards[shape] = _Forward(buffers, prefixes, logits, self._captured(work))
        return forward

    def capture_draw(self, num_rows: int, needs: int) -> Callable[[], SampledTokens]:
        """Captures the draw of a number of rows.

        Raises:
            CaptureFailed: The device refuses.
        """
        logits = self._logits(num_rows)

        def work() -> SampledTokens:
            return self._sampler.draw_captured(logits.scores, logits.slots, logits.positions, needs)

        draw = self._draws[num_rows, needs] = self._captured(work)
        return draw

    def _logits(self, num_rows: int) -> Logits:
        """Returns the first rows of the buffers in which every captured step leaves its logits."""
        slots, positions = self._rows.draws(num_rows)
        return Logits(scores=self._scores[:num_rows], slots=slots, positions=positions)

    def _captured(self, work: Callable[[], T]) -> Callable[[], T]:
        try:
            return self._capture(work)
        except RuntimeError as error:
            raise CaptureFailed(str(error)) from error
