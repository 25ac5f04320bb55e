"""Every sequence's sampling parameters, in one table on the device, by slot.

The host keeps a copy of what decides which work a step needs at all, so that a row without extra
controls pays nothing for those with, and no step asks the device.
"""

import enum
import math

import numpy as np
import numpy.typing as npt
import torch

from openinfer_contract import FEATURES, GenerateRequest
from openinfer_sampler._random import as_signed
from openinfer_sampler._upload import upload
from openinfer_sampler.errors import UnsupportedControl

HONOURED = frozenset(
    {"sampling.seed", "stop.min_tokens", "logprobs", "logprobs.token_ids", "logprobs.mode"}
)
"""The names of `openinfer_contract.FEATURES` that this sampler honours."""

_CONTROLS = tuple(
    name for name in FEATURES if name.startswith("sampling.") and name not in HONOURED
)


_NO_ROWS = np.zeros(0, np.int64)


class Needs:
    """Bits of the work that a row asks for. Plain integers: they are tested in every step."""

    NOISE = 1
    """It is drawn, not the argmax."""
    FILTER = 2
    """Top-k, top-p or min-p."""
    MIN_TOKENS = 4
    RAW_LOGPROBS = 8
    PROCESSED_LOGPROBS = 16


class Column(enum.IntEnum):
    """Columns of the table. Integers as they are, the others as the bits of a float64."""

    SEED = 0
    FIRST_STOP_POSITION = 1
    """Sequence index of the first token that may be a stop id."""
    TOP_K = 2
    INVERSE_TEMPERATURE = 3
    TOP_P = 4
    LOG_MIN_P = 5
    STOP_IDS = 6
    """The first of `max_stop_token_ids` columns, filled up by repetition."""


def floats(table: torch.Tensor, column: Column) -> torch.Tensor:
    """[n], float64: a column of gathered rows that holds floats."""
    return table[:, column].view(torch.float64)


class SamplingRows:
    """Sampling parameters by slot."""

    def __init__(
        self, num_slots: int, vocab_size: int, max_stop_token_ids: int, device: torch.device
    ) -> None:
        width = Column.STOP_IDS + max_stop_token_ids
        self._host = np.zeros((num_slots, width), np.int64)
        self._table = torch.zeros((num_slots, width), dtype=torch.int64, device=device)
        self._stale: set[int] = set()
        self._vocab_size = vocab_size
        self.needs = np.zeros(num_slots, np.int64)
        """[num_slots]: `Needs` of each row."""
        self.num_top = np.zeros(num_slots, np.int64)
        self.by_id: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)] * num_slots
        """By slot: `LogprobOptions.token_ids`."""

    def set(
        self, slot: int, request: GenerateRequest, seed: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        """See `Sampler.set`."""
        for name in _CONTROLS:
            if FEATURES[name](request):
                raise UnsupportedControl(name)
        stop_ids = _stop_ids(request, eos_token_ids, self._vocab_size)
        room = self._host.shape[1] - Column.STOP_IDS
        if len(stop_ids) > room:
            raise ValueError(f"{len(stop_ids)} stop token ids, a row holds {room}")
        by_id = _by_id(request)
        if len(by_id) and by_id.max() >= self._vocab_size:
            raise ValueError(f"logprobs.token_ids must be below {self._vocab_size}")
        self.by_id[slot] = by_id
        self._fill(self._host[slot], request, seed, stop_ids)
        self._stale.add(slot)
        self._set_needs(slot, request, bool(stop_ids))

    def _fill(
        self,
        row: npt.NDArray[np.int64],
        request: GenerateRequest,
        seed: int,
        stop_ids: list[int],
    ) -> None:
        sampling = request.sampling
        num_prompt = request.num_prompt_tokens - request.num_output_prefix
        floats = row.view(np.float64)
        row[Column.SEED] = as_signed(seed)
        row[Column.FIRST_STOP_POSITION] = num_prompt + request.stop.min_tokens
        row[Column.TOP_K] = min(sampling.top_k or self._vocab_size, self._vocab_size)
        is_greedy = sampling.is_greedy
        floats[Column.INVERSE_TEMPERATURE] = 1.0 if is_greedy else 1.0 / sampling.temperature
        floats[Column.TOP_P] = sampling.top_p
        floats[Column.LOG_MIN_P] = math.log(sampling.min_p) if sampling.min_p else -math.inf
        if stop_ids:
            row[Column.STOP_IDS :] = stop_ids[0]
            row[Column.STOP_IDS : Column.STOP_IDS + len(stop_ids)] = stop_ids

    def _set_needs(self, slot: int, request: GenerateRequest, has_stop_ids: bool) -> None:
        sampling, logprobs = request.sampling, request.logprobs
        needs = 0
        if not sampling.is_greedy:
            needs |= Needs.NOISE
            top_k = sampling.top_k or self._vocab_size
            if top_k < self._vocab_size or sampling.top_p < 1.0 or sampling.min_p > 0.0:
                needs |= Needs.FILTER
        if request.stop.min_tokens > 0 and has_stop_ids:
            needs |= Needs.MIN_TOKENS
        self.num_top[slot] = 0
        if logprobs is not None:
            is_raw = logprobs.mode == "raw"
            needs |= Needs.RAW_LOGPROBS if is_raw else Needs.PROCESSED_LOGPROBS
            self.num_top[slot] = min(logprobs.num_top, self._vocab_size)
        self.needs[slot] = needs

    def step(self, slots: npt.NDArray[np.int64], positions: torch.Tensor) -> "StepRows":
        """The rows of one step, after sending what has changed."""
        if self._stale:
            device = self._table.device
            stale = np.fromiter(self._stale, np.int64)
            self._stale.clear()
            self._table.index_copy_(0, upload(stale, device), upload(self._host[stale], device))
        return StepRows(self, slots, positions)

    def gather(self, slots: npt.NDArray[np.int64]) -> torch.Tensor:
        """[n, columns], int64, on the device."""
        return self._table.index_select(0, upload(slots, self._table.device))

    def filter_bounds(self, slots: npt.NDArray[np.int64]) -> tuple[int, bool]:
        """The largest top_k in force among `slots` (0: none), and whether any has top_p."""
        top_k = self._host[slots, Column.TOP_K]
        top_k = top_k[top_k < self._vocab_size]
        top_p = self._host.view(np.float64)[slots, Column.TOP_P]
        return int(top_k.max(initial=0)), bool((top_p < 1.0).any())


class StepRows:
    """Some rows of one step: which of them need what, and their parameters.

    Attributes:
        slots: [n], on the host.
        positions: [n], int64, on the device: index in the sequence of the token to draw.
    """

    def __init__(
        self, rows: SamplingRows, slots: npt.NDArray[np.int64], positions: torch.Tensor
    ) -> None:
        self.slots = slots
        self.positions = positions
        self._rows = rows
        self._needs = rows.needs[slots]
        self._all_needs = int(np.bitwise_or.reduce(self._needs))
        self._table: torch.Tensor | None = None

    def need(self, need: int) -> npt.NDArray[np.int64]:
        """Indices of the rows with this need."""
        if not self._all_needs & need:
            return _NO_ROWS
        return (self._needs & need).nonzero()[0]

    @property
    def table(self) -> torch.Tensor:
        """[n, columns], int64, on the device; fetched at the first use."""
        if self._table is None:
            self._table = self._rows.gather(self.slots)
        return self._table

    def part(self, index: npt.NDArray[np.int64], device_index: torch.Tensor) -> "StepRows":
        """Some of these rows; `device_index` is `index` on the device."""
        return StepRows(self._rows, self.slots[index], self.positions.index_select(0, device_index))

    def filter_bounds(self) -> tuple[int, bool]:
        """The largest top_k in force (0: none), and whether any row has top_p."""
        return self._rows.filter_bounds(self.slots)


def _by_id(request: GenerateRequest) -> npt.NDArray[np.int64]:
    column = request.logprobs.token_ids if request.logprobs else b""
    return np.frombuffer(column, "<u4").astype(np.int64)


def _stop_ids(
    request: GenerateRequest, eos_token_ids: tuple[int, ...], vocab_size: int
) -> list[int]:
    eos = () if request.stop.ignore_eos else eos_token_ids
    # An id outside the vocabulary cannot be drawn; some checkpoints name such an EOS.
    return sorted({i for i in (*request.stop.stop_token_ids, *eos) if i < vocab_size})
