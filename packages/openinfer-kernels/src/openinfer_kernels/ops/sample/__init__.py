"""Logits to tokens: all sampling controls of a request, one draw per row, in one step.

The controls run in vLLM's order: masks (allowed ids, grammar, min_tokens, bad words) and logit
bias; repetition, frequency and presence penalty; temperature; min-p; top-k; top-p of the
rest; draw. All filters keep tokens that tie with the last one kept, so the kept set is a function
of the scores alone. Random numbers are a function of (seed, position, token id) alone; see
`_random`.

The parameters of a row lie in tables on the device, by slot. A back end may skip work that no
row needs, which the host knows (`SampleRows.needs`). It never waits for the device.
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
"""Bit of `SampleState.counts` that is set for tokens of the prompt."""

PADDING = -1
"""Padding on the left of `SampleState.bad_words`."""


class Needs:
    """Bits of the work that a row needs. Plain integers, because every step tests them."""

    NOISE = 1
    """The row is sampled; without this bit it is greedy."""
    FILTER = 2
    """The row is sampled with top-k, top-p or min-p."""
    MIN_TOKENS = 4
    BIAS = 8
    """The row has a logit bias or allowed ids; `SampleState.bias` is valid for it."""
    PENALTIES = 16
    """The row has penalties; `SampleState.counts` is valid for it."""
    BAD_WORDS = 32
    PROCESSED = 64
    """The request wants processed scores."""

    CONTROLS = MIN_TOKENS | BIAS | PENALTIES | BAD_WORDS
    """All controls that change logits before the temperature."""


class Failure:
    """Reasons why no token can be drawn. Plain integers, as they reach the host."""

    NONE = 0
    NOT_FINITE = 1
    """The scores hold NaN or +inf."""
    NOTHING_LEFT = 2
    """No token is allowed: all scores are -inf."""


class Column(enum.IntEnum):
    """Columns of `SampleState.table`: integers, or the bits of a float64."""

    NEEDS = 0
    SEED = 1
    FIRST_OUTPUT_POSITION = 2
    """Sequence index of the first output token; tokens of a resumed prefix count as output."""
    FIRST_STOP_POSITION = 3
    """Sequence index of the first token that may be a stop id."""
    TOP_K = 4
    """At most vocab_size, which means no limit."""
    INVERSE_TEMPERATURE = 5
    """1 for a greedy row."""
    TOP_P = 6
    LOG_MIN_P = 7
    REPETITION_PENALTY = 8
    PRESENCE_PENALTY = 9
    FREQUENCY_PENALTY = 10
    STOP_IDS = 11
    """The first of `max_stop_ids` columns; unused ones repeat a stop id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleState:
    """The tables, by slot. A draw writes the last three; the caller writes all others.

    Attributes:
        table: [num_slots, columns], int64; see `Column`.
        bias: [num_slots, vocab_size], float32: added to the logits; -inf for ids that are not
            allowed. Only read for rows with `Needs.BIAS`.
        bad_words: [num_slots, max_bad_words, max_bad_word_ids], int32: sequences of ids,
            right-aligned, with `PADDING` before them. Only read for rows with `Needs.BAD_WORDS`.
        counts: [num_slots, vocab_size], int32: how often each token is in the output, with
            the bit `IN_PROMPT`. Only read for rows with `Needs.PENALTIES`.
        recent: [num_slots, max_bad_word_ids], int32: output tokens by sequence index modulo
            max_bad_word_ids. Only read for rows with `Needs.BAD_WORDS`.
        last_token: [num_slots], int64: the last drawn token.
    """

    table: torch.Tensor
    bias: torch.Tensor
    bad_words: torch.Tensor
    counts: torch.Tensor
    recent: torch.Tensor
    last_token: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpec:
    """Sizes of the tables and steps, fixed when an executor is built.

    Attributes:
        vocab_size: Columns of the logits.
        num_slots: Rows of the tables.
        max_rows: Upper bound of the rows in a step.
        max_stop_ids: Upper bound of the stop ids of a row, not 0.
        max_bad_words: Upper bound of the bad words of a row.
        max_bad_word_ids: Upper bound of the ids of one bad word, a power of two.
    """

    vocab_size: int
    num_slots: int
    max_rows: int
    max_stop_ids: int = 64
    max_bad_words: int = 256
    max_bad_word_ids: int = 32

    def allocate(self, device: torch.device | str) -> SampleState:
        """Returns tables of zeros. On a CPU they take memory only where they are written."""

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
        slots: [n], int64, on the device: the slot of each row; no slot twice.
        positions: [n], int64, on the device: sequence index of the token to draw.
        needs: [n], int64, on the host: `Needs` of each row, as in the table.
        all_needs: The union of `needs`.
        max_top_k: Largest top_k below vocab_size of the rows with `Needs.FILTER`; 0 for none.
        has_top_p: Whether any row with `Needs.FILTER` has a top_p below 1.
        masks: Indices of rows, and for each of them [ceil(vocab_size / 32)], int32 on the device: a
            bit for each id, least significant first, set where the id is allowed.
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
        """Stores the arguments and computes `all_needs`."""
        self.slots = slots
        self.positions = positions
        self.needs = needs
        self.all_needs = int(np.bitwise_or.reduce(needs))
        self.max_top_k = max_top_k
        self.has_top_p = has_top_p
        self.masks = masks

    def rows_with(self, needs: int) -> Indices:
        """Returns the indices of rows with any of these needs."""
        if not self.all_needs & needs:
            return _NO_ROWS
        return (self.needs & needs).nonzero()[0]

    def select(self, index: Indices) -> tuple["SampleRows", torch.Tensor]:
        """Returns some of the rows, without masks, and `index` on the device."""
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
    """The result of a draw.

    Attributes:
        packed: [2, n], int32: `token_ids`, then `failures`, for one copy to the host.
        processed: [m, vocab_size], float32, scores of the m rows with `Needs.PROCESSED`, in order:
            after every control, and -inf for tokens that could not be drawn. Greedy rows have no
            temperature. None if there are no such rows.
    """

    packed: torch.Tensor
    processed: torch.Tensor | None

    @property
    def token_ids(self) -> torch.Tensor:
        """[n], int32; some id of the vocabulary in rows that failed."""
        return self.packed[0]

    @property
    def failures(self) -> torch.Tensor:
        """[n], int32: the `Failure` of each row."""
        return self.packed[1]


class Sample(Protocol):
    """The `sample` that `plan_sample` returns. For one thread and one stream."""

    @property
    def is_capturable(self) -> bool:
        """Whether this is a `CapturableSample`."""
        ...

    def __call__(self, logits: torch.Tensor, rows: SampleRows, /) -> Drawn:
        """Draws one token per row and writes it to the tables.

        Args:
            logits: [n, vocab_size], any float dtype, contiguous rows, not modified. Computation
                is in float32.
            rows: The rows of the step.
        """
        ...

    def write_row(self, row: torch.Tensor, ids: Indices, values: npt.NDArray[Any], /) -> None:
        """Writes values into one row of `SampleState.bias` or `counts`, without waiting.

        Args:
            row: [vocab_size], the row.
            ids: [m], on the host: ids to write; none twice.
            values: [m], on the host, in the row's dtype.
        """
        ...


class CapturableSample(Sample, Protocol):
    """A `Sample` whose calls without masks may be captured and replayed for other rows.

    The launches depend on the number of rows and on `all_needs` alone. The result of a row follows
    from the tables, even if the captured `all_needs` has more bits. A captured call computes no
    processed scores; `processed` does that, for the steps that want them.
    """

    def processed(
        self, logits: torch.Tensor, rows: SampleRows, packed: torch.Tensor, index: Indices, /
    ) -> torch.Tensor:
        """Returns the processed scores of some rows of the last draw.

        Args:
            logits: The logits of the last draw.
            rows: The rows of the last draw.
            packed: The result of the last draw; see `Drawn.packed`.
            index: [m], on the host: indices of rows with `Needs.PROCESSED` in the table.

        Returns:
            [m, vocab_size]; see `Drawn.processed`.
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
    """Chooses a back end of `sample` and binds it to a spec, its tables and a device.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    module = backend_module("sample", spec, device, backend)
    return cast(Sample, module.plan(spec, state, device))
