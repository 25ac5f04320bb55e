"""Whole steps at the price of one launch: recorded once for each shape, then replayed.

A step is two recordings, so that their kinds add up instead of multiplying: the forward pass of a
shape, from the rows' tables to logits; and the draw of so many rows with the controls that they
ask for, from logits to the tables. Between them lie buffers that all recordings share.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from openinfer_kernels import PrefixGroup
from openinfer_nn import CacheView
from openinfer_runtime._model import TorchModel
from openinfer_runtime.errors import RecordingFailed
from openinfer_runtime.graphs._recorder import Recorder
from openinfer_runtime.steps._prefix_groups import PrefixInput
from openinfer_runtime.steps._row_table import RowTable
from openinfer_runtime.steps._step_buffers import HostRows, StepBuffers
from openinfer_runtime.steps._step_shapes import StepShape, StepShapes
from openinfer_sampler import RECORDED_NEEDS, SampledTokens, Sampler
from openinfer_scheduler import StepPlan

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """Logits of a step, and the slot and position of each row's draw.

    Attributes:
        scores: [n, vocab_size], in the model's dtype.
        slots: [n], int64: slot of each row; the padding slot where no token is drawn.
        positions: [n], int64: sequence index of the token to draw.
        sampled_rows: [>= num_sampled], int64, on the device: rows that are sampled, where the
            logits have one for every row of the plan and for padding; None where all are sampled.
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
    """The recorded steps of one executor. Use from the step thread.

    Args:
        model: whose forward pass is recorded.
        cache: that it writes to.
        rows: that it reads and advances.
        sampler: that draws.
        shapes: of the steps.
        record: makes a step repeatable.
        vocab_size: columns of the logits.
        dtype: of the logits.
        device: of all of them.
    """

    def __init__(
        self,
        model: TorchModel,
        cache: CacheView,
        rows: RowTable,
        sampler: Sampler,
        shapes: StepShapes,
        record: Recorder,
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
        self._record = record
        self._device = device
        num_rows = shapes.max_num_seqs
        self._scores = torch.zeros((num_rows, vocab_size), dtype=dtype, device=device)
        rows.reserve(max(shapes.max_num_tokens, num_rows), num_rows)
        self._ahead = deque(shapes.all())
        self._forwards: dict[StepShape, _Forward] = {}
        self._draws: dict[tuple[int, int], Callable[[], SampledTokens]] = {}

    def shape_of(self, plan: StepPlan, groups: Sequence[PrefixGroup] = ()) -> StepShape | None:
        """The shape that a plan with rows is padded to; None if it is too large for any."""
        return self._shapes.of(plan, shares_prefixes=bool(groups))

    def forward(
        self, plan: StepPlan, shape: StepShape, groups: Sequence[PrefixGroup] = ()
    ) -> tuple[HostRows, Logits]:
        """Enqueues the forward pass of a plan; logits by row of the plan, then padding.

        The logits hold until the next forward pass.

        Args:
            plan: with rows.
            shape: that it is padded to.
            groups: of rows that share blocks, as the shape was chosen for.

        Raises:
            RecordingFailed: of a shape that comes for the first time.
        """
        forward = self._forwards.get(shape) or self.record_forward(shape)
        rows = self._rows.enter(plan, forward.buffers)
        if forward.prefixes is not None:
            forward.prefixes.fill(groups)
        forward.run()
        return rows, forward.logits

    def draw(self, logits: Logits, rows: HostRows, needs: int) -> SampledTokens:
        """Enqueues the draw of a step, and beside it the logprobs that its rows ask for.

        Args:
            logits: of `forward`, just now.
            rows: of `forward`.
            needs: of `Sampler.recordable_needs`.

        Raises:
            RecordingFailed: of a draw that comes for the first time.
        """
        num_rows = len(logits.slots)
        draw = self._draws.get((num_rows, needs)) or self.record_draw(num_rows, needs)
        return self._sampler.add_logprobs(
            draw(),
            logits.scores,
            logits.slots,
            logits.positions,
            needs,
            slots=rows.sampled_slots,
            at=rows.sampled_rows,
        )

    def record_next(self, *, is_urgent: bool = False) -> bool:
        """Records the next shape, and its draws, that no step has had yet.

        Args:
            is_urgent: only if it is one of those that every load needs.

        Returns:
            Whether there was one.
        """
        while self._ahead:
            shape = self._ahead[0]
            if is_urgent and not self._shapes.is_urgent(shape):
                return False
            self._ahead.popleft()
            if shape not in self._forwards:
                self.record_forward(shape)
                for needs in RECORDED_NEEDS:
                    if (shape.num_seqs, needs) not in self._draws and self._sampler.is_recordable:
                        self.record_draw(shape.num_seqs, needs)
                return True
        return False

    def record_forward(self, shape: StepShape) -> _Forward:
        """Records the forward pass of a shape.

        Raises:
            RecordingFailed: the device does not.
        """
        buffers = self._rows.captured_step(shape)
        logits = replace(self._logits(shape.num_seqs), sampled_rows=buffers.sampled_rows)
        prefixes = None
        if shape.shares_prefixes:
            num_kv_heads = self._cache.spec.planes[0].num_heads
            prefixes = PrefixInput(shape.num_seqs, num_kv_heads, self._device)
        inputs = buffers.inputs
        if prefixes is not None:
            inputs = replace(inputs, shared=prefixes.shared)

        def work() -> None:
            self._rows.advance(buffers)
            hidden = self._model.forward(inputs, self._cache)
            if not shape.is_decode:  # a decode step wants the logits of every token
                hidden = hidden.index_select(0, inputs.logits_indices)
            self._model.logits(hidden, logits.scores)

        forward = self._forwards[shape] = _Forward(buffers, prefixes, logits, self._recorded(work))
        return forward

    def record_draw(self, num_rows: int, needs: int) -> Callable[[], SampledTokens]:
        """Records the draw of so many rows.

        Raises:
            RecordingFailed: the device does not.
        """
        logits = self._logits(num_rows)

        def work() -> SampledTokens:
            return self._sampler.draw_recorded(logits.scores, logits.slots, logits.positions, needs)

        draw = self._draws[num_rows, needs] = self._recorded(work)
        return draw

    def _logits(self, num_rows: int) -> Logits:
        """The first rows, where every recorded step leaves them."""
        slots, positions = self._rows.draws(num_rows)
        return Logits(scores=self._scores[:num_rows], slots=slots, positions=positions)

    def _recorded(self, work: Callable[[], T]) -> Callable[[], T]:
        try:
            return self._record(work)
        except RuntimeError as error:
            raise RecordingFailed(str(error)) from error
