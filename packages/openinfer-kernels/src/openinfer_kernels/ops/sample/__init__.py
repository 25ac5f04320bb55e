"""Logits to tokens: every control of a request, one draw a row, its tables updated in the step.

In this order, vLLM's: masks (allowed ids, a grammar's, min_tokens, bad words) and logit bias;
repetition, frequency and presence penalty; temperature; min-p; top-k; top-p of what both left;
draw. All filters keep tokens that tie with the last one kept, so what is kept is a function of the
scores alone. Randomness is a function of (seed, position, token id) alone: see `_random`.

A row's parameters lie in tables on the device, by slot. A backend may use what the host knows of
the rows (`SampleRows.needs`) to leave work out; it never waits for the device.
"""

import enum
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from openinfer_kernels.dispatch._choice import backend_module
from openinfer_kernels.memory._upload import upload

Indices = npt.NDArray[np.int64]

_NO_ROWS = np.zeros(0, np.int64)

IN_PROMPT = 1 << 30
"""Bit of `SampleState.counts` that says that a token is in the prompt."""

PADDING = -1
"""Fills up `SampleState.bad_words`."""


class Needs:
    """Bits of the work that a row asks for. Plain integers: they are tested in every step."""

    NOISE = 1
    """It is drawn, not the argmax."""
    FILTER = 2
    """Top-k, top-p or min-p, of a row that is drawn."""
    MIN_TOKENS = 4
    BIAS = 8
    """Logit bias or allowed ids: it has a row of `SampleState.bias`."""
    PENALTIES = 16
    """It has a row of `SampleState.counts`."""
    BAD_WORDS = 32
    PROCESSED = 64
    """Its processed scores are wanted."""

    CONTROLS = MIN_TOKENS | BIAS | PENALTIES | BAD_WORDS
    """What changes logits before the temperature."""


class Failure:
    """Why a row cannot be drawn from. Plain integers: that is how they reach the host."""

    NONE = 0
    NOT_FINITE = 1
    """The scores hold NaN or +inf."""
    NOTHING_LEFT = 2
    """Every token is ruled out: all scores are -inf."""


class Column(enum.IntEnum):
    """Columns of the table. Integers as they are, the others as the bits of a float64."""

    NEEDS = 0
    SEED = 1
    FIRST_OUTPUT_POSITION = 2
    """Sequence index of the first output token, a resumed prefix included."""
    FIRST_STOP_POSITION = 3
    """Sequence index of the first token that may be a stop id."""
    TOP_K = 4
    """vocab_size switches it off."""
    INVERSE_TEMPERATURE = 5
    """1 for a greedy row."""
    TOP_P = 6
    LOG_MIN_P = 7
    REPETITION_PENALTY = 8
    PRESENCE_PENALTY = 9
    FREQUENCY_PENALTY = 10
    STOP_IDS = 11
    """The first of `max_stop_ids` columns, filled up by repetition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleState:
    """The tables, by slot. A draw changes the last three, everything else is the caller's.

    Attributes:
        table: [num_slots, columns], int64: see `Column`.
        bias: [num_slots, vocab_size], float32: added to the logits, -inf for ids that are not
            allowed. Holds for rows with `Needs.BIAS`.
        bad_words: [num_slots, max_bad_words, max_bad_word_ids], int32: sequences of ids, at the
            right end of their row behind `PADDING`. Hold for rows with `Needs.BAD_WORDS`.
        counts: [num_slots, vocab_size], int32: how often each token is in the output, and
            `IN_PROMPT`. Holds for rows with `Needs.PENALTIES`.
        recent: [num_slots, max_bad_word_ids], int32: output tokens by sequence index modulo
            max_bad_word_ids. Holds for rows with `Needs.BAD_WORDS`.
        last_token: [num_slots], int64: the token drawn last.
    """

    table: torch.Tensor
    bias: torch.Tensor
    bad_words: torch.Tensor
    counts: torch.Tensor
    recent: torch.Tensor
    last_token: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpec:
    """What is fixed about sampling when an executor is built.

    Attributes:
        vocab_size: Columns of the logits.
        num_slots: Rows of the tables.
        max_rows: Rows of a step at most.
        max_stop_ids: Stop ids of a row at most, at least 1.
        max_bad_words: Bad words of a row at most.
        max_bad_word_ids: Ids of one bad word at most, a power of two.
    """

    vocab_size: int
    num_slots: int
    max_rows: int
    max_stop_ids: int = 64
    max_bad_words: int = 256
    max_bad_word_ids: int = 32

    def allocate(self, device: torch.device | str) -> SampleState:
        """Tables of zeros; on the CPU those take memory only where they have been written."""

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros((self.num_slots, *shape), dtype=dtype, device=device)

        return SampleState(
            table=zeros(Column.STOP_IDS + self.max_stop_ids, dtype=torch.int64),
            bias=zeros(self.vocab_size, dtype=torch.float32),
            bad_words=zeros(self.max_bad_words, self.max_bad_word_ids, dtype=torch.int32),
            counts=zeros(self.vocab_size, dtype=torch.int32),
            recent=zeros(self.max_bad_word_ids, dtype=torch.int32),
            last_token=zeros(dtype=torch.int64),
        )


class SampleRows:
    """The rows of one step.

    Attributes:
        slots: [n], int64, on the device: their rows of the tables, no slot twice.
        positions: [n], int64, on the device: sequence index of the token to draw.
        needs: [n], int64, on the host: `Needs` of each row, as in the table.
        all_needs: what any row needs.
        max_top_k: the largest top_k below vocab_size of a row with `Needs.FILTER`; 0: none.
        has_top_p: whether any row with `Needs.FILTER` has a top_p below 1.
        masks: rows of the step, and for each of them [ceil(vocab_size / 32)], int32 on the
            device: a bit per id, least significant first, set where the id is allowed.
    """

    __slots__ = ("all_needs", "has_top_p", "masks", "max_top_k", "needs", "positions", "slots")

    def __init__(
        self,
        slots: torch.Tensor,
        positions: torch.Tensor,
        needs: Indices,
        *,
        max_top_k: int = 0,
        has_top_p: bool = False,
        masks: tuple[Indices, torch.Tensor] | None = None,
    ) -> None:
        """Takes what is known of the rows; see the attributes."""
        self.slots = slots
        self.positions = positions
        self.needs = needs
        self.all_needs = int(np.bitwise_or.reduce(needs))
        self.max_top_k = max_top_k
        self.has_top_p = has_top_p
        self.masks = masks

    def need(self, need: int) -> Indices:
        """Indices of the rows with any of these needs."""
        if not self.all_needs & need:
            return _NO_ROWS
        return (self.needs & need).nonzero()[0]

    def part(self, index: Indices) -> tuple["SampleRows", torch.Tensor]:
        """Some of these rows, without masks, and `index` on the device."""
        at = upload(index, self.slots.device)
        rows = SampleRows(
            self.slots.index_select(0, at),
            self.positions.index_select(0, at),
            self.needs[index],
            max_top_k=self.max_top_k,
            has_top_p=self.has_top_p,
        )
        return rows, at


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What was drawn.

    Attributes:
        packed: [2, n], int32, for one copy to the host: `token_ids`, then `failures`.
        processed: [m, vocab_size], float32, of the m rows with `Needs.PROCESSED`, in their order:
            scores after every control, -inf where a token could not be drawn; before temperature in
            greedy rows. None if there are none.
    """

    packed: torch.Tensor
    processed: torch.Tensor | None

    @property
    def token_ids(self) -> torch.Tensor:
        """[n], int32. Of failed rows: some id of the vocabulary."""
        return self.packed[0]

    @property
    def failures(self) -> torch.Tensor:
        """[n], int32: one of `Failure` a row."""
        return self.packed[1]


class Sample(Protocol):
    """A bound `sample`. One thread, one stream."""

    @property
    def is_recordable(self) -> bool:
        """Whether it is a `RecordableSample`."""
        ...

    def __call__(self, logits: torch.Tensor, rows: SampleRows, /) -> Drawn:
        """Draws one token a row and enters it in the tables.

        Args:
            logits: [n, vocab_size], any float dtype, contiguous rows, left as they are; they are
                computed with in float32.
            rows: whose they are.
        """
        ...

    def enter(self, row: torch.Tensor, ids: Indices, values: npt.NDArray[Any], /) -> None:
        """Writes numbers of one row of `SampleState.bias` or `counts`; enqueues and returns.

        Args:
            row: [vocab_size], the row.
            ids: [m], where, on the host; none twice.
            values: [m], int32 or float32 as the row has them, on the host.
        """
        ...


class RecordableSample(Sample, Protocol):
    """A `Sample` whose calls without masks may be recorded and replayed for other rows and needs.

    What is enqueued then depends on the number of rows and on `all_needs` alone; what a row gets
    follows from the tables, whatever further needs are enqueued for. Processed scores are left to a
    call of their own, for the steps that want some.
    """

    def processed(
        self, logits: torch.Tensor, rows: SampleRows, packed: torch.Tensor, index: Indices, /
    ) -> torch.Tensor:
        """The processed scores of some rows of a draw that was not told to leave any.

        Args:
            logits: of the draw before, which no other has followed.
            rows: of it.
            packed: what it came to.
            index: [m], on the host: rows of it that have `Needs.PROCESSED` in the table. Others are
                neither read nor written.

        Returns:
            [m, vocab_size], see `Drawn.processed`.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("cpu", "torch", "reference"),
    "cuda": ("triton", "torch", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {"": SampleSpec(vocab_size=151_936, num_slots=256, max_rows=256)}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_sample(
    spec: SampleSpec, state: SampleState, device: torch.device | str, backend: str = "auto"
) -> Sample:
    """Chooses and binds `sample` over these tables.

    Raises:
        BackendUnavailable: The backend cannot run this spec on this device.
    """
    module = backend_module("sample", spec, device, backend)
    return cast(Sample, module.plan(spec, state, device))
