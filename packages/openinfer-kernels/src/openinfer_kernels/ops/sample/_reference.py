"""The definition of sample: row by row and id by id, in float64."""

import math

import torch

from openinfer_kernels.ops.sample import (
    IN_PROMPT,
    PADDING,
    Column,
    Drawn,
    Failure,
    Needs,
    Sample,
    SampleRows,
    SampleSpec,
    SampleState,
)
from openinfer_kernels.ops.sample._controls import write_row
from openinfer_kernels.ops.sample._random import counters, random_bits, row_keys


def plan(spec: SampleSpec, state: SampleState, device: torch.device | str) -> Sample:
    """Binds the definition to the tables."""
    return _Reference(state)


class _Reference:
    is_capturable = False
    write_row = staticmethod(write_row)

    def __init__(self, state: SampleState) -> None:
        self._state = state

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> Drawn:
        masks = [None] * len(rows.needs)
        if rows.masks is not None:
            for row, bits in zip(rows.masks[0].tolist(), rows.masks[1], strict=True):
                masks[row] = bits
        drawn = [
            _Row(self._state, int(slot), int(position)).draw(scores, mask)
            for scores, slot, position, mask in zip(
                logits.double(), rows.slots, rows.positions, masks, strict=True
            )
        ]
        token_ids, failures, processed = zip(*drawn, strict=True)
        wanted = rows.rows_with(Needs.PROCESSED).tolist()
        packed = torch.tensor([token_ids, failures], dtype=torch.int32, device=logits.device)
        return Drawn(
            packed=packed,
            processed=torch.stack([processed[row] for row in wanted]).float() if wanted else None,
        )


def _failure(best: float) -> int:
    if math.isfinite(best):
        return Failure.NONE
    return Failure.NOTHING_LEFT if best == -math.inf else Failure.NOT_FINITE


class _Row:
    def __init__(self, state: SampleState, slot: int, position: int) -> None:
        self._table = state.table[slot]
        self._counts = state.counts[slot]
        self._bias = state.bias[slot]
        self._words = state.bad_words[slot]
        self._recent = state.recent[slot]
        self._last_token = state.last_token[slot]
        self._needs = self._integer(Column.NEEDS)
        self._position = position

    def draw(
        self, scores: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[int, int, torch.Tensor]:
        """Returns the token, the `Failure`, and the processed scores."""
        scores = self._constrain(scores)
        if mask is not None:
            for token_id in range(len(scores)):
                if not int(mask[token_id // 32]) >> token_id % 32 & 1:
                    scores[token_id] = -math.inf
        perturbed = scores
        if self._needs & Needs.NOISE:
            scores = self._filter(scores * self._float(Column.INVERSE_TEMPERATURE))
            perturbed = scores + self._noise(len(scores))
        best, best_id = perturbed.max(dim=0)
        self._write_result(int(best_id))
        return int(best_id), _failure(float(best)), scores

    def _constrain(self, scores: torch.Tensor) -> torch.Tensor:
        if self._needs & Needs.BIAS:
            scores = scores + self._bias
        if self._needs & Needs.PENALTIES:
            scores = self._apply_penalties(scores)
        if self._needs & Needs.MIN_TOKENS and self._position < self._integer(
            Column.FIRST_STOP_POSITION
        ):
            scores[self._table[Column.STOP_IDS :]] = -math.inf
        if self._needs & Needs.BAD_WORDS:
            for word in self._words.tolist():
                ids = [token_id for token_id in word if token_id != PADDING]
                if ids and self._output(len(ids) - 1) == ids[:-1]:
                    scores[ids[-1]] = -math.inf
        return scores

    def _apply_penalties(self, scores: torch.Tensor) -> torch.Tensor:
        repetition = self._float(Column.REPETITION_PENALTY)
        count = self._counts & (IN_PROMPT - 1)
        repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
        scores = torch.where(self._counts != 0, repeated, scores)
        scores = scores - self._float(Column.FREQUENCY_PENALTY) * count
        return scores - self._float(Column.PRESENCE_PENALTY) * (count > 0)

    def _output(self, num_ids: int) -> list[int] | None:
        """Returns the last `num_ids` output tokens, None if there are fewer."""
        first = self._position - num_ids
        if first < self._integer(Column.FIRST_OUTPUT_POSITION):
            return None if num_ids else []
        return [int(self._recent[i % len(self._recent)]) for i in range(first, self._position)]

    def _filter(self, scores: torch.Tensor) -> torch.Tensor:
        ordered = scores.sort(descending=True).values
        if not math.isfinite(ordered[0]):
            return scores  # no token can be drawn
        lowest = ordered[0] + self._float(Column.LOG_MIN_P)
        top_k, top_p = self._integer(Column.TOP_K), self._float(Column.TOP_P)
        if top_k < len(scores):
            lowest = torch.maximum(lowest, ordered[top_k - 1])
        scores = scores.masked_fill(scores < lowest, -math.inf)
        if top_p < 1:
            probability = ordered.masked_fill(ordered < lowest, -math.inf).softmax(dim=0)
            before = probability.cumsum(dim=0) - probability
            lowest = ordered[before < top_p].min()
        return scores.masked_fill(scores < lowest, -math.inf)

    def _noise(self, vocab_size: int) -> torch.Tensor:
        seed, position = self._table[Column.SEED], torch.tensor(self._position)
        keys = row_keys(seed.reshape(1).cpu(), position.reshape(1))
        bits = random_bits(keys, counters(vocab_size, keys.device), vocab_size)
        fraction = (bits[0].double() / 2**31).clamp(2.0**-32, 1 - 2.0**-24)
        return -torch.log(-torch.log1p(-fraction)).to(self._table.device)

    def _write_result(self, token_id: int) -> None:
        self._last_token.fill_(token_id)
        if self._needs & Needs.PENALTIES:
            self._counts[token_id] += 1
        if self._needs & Needs.BAD_WORDS:
            self._recent[self._position % len(self._recent)] = token_id

    def _integer(self, column: Column) -> int:
        return int(self._table[column])

    def _float(self, column: Column) -> float:
        return float(self._table.view(torch.float64)[column])
