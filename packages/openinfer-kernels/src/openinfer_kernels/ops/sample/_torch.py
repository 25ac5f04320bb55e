"""sample with torch's operators, for any device."""

import torch

from openinfer_kernels.memory._upload import upload
from openinfer_kernels.ops.sample import (
    Column,
    Drawn,
    Failure,
    Needs,
    Sample,
    SampleRows,
    SampleSpec,
    SampleState,
)
from openinfer_kernels.ops.sample._controls import constrain, count_tokens, floats, write_row
from openinfer_kernels.ops.sample._filter import filter_
from openinfer_kernels.ops.sample._random import counters, gumbel_noise, random_bits, row_keys


def plan(spec: SampleSpec, state: SampleState, device: torch.device | str) -> Sample:
    """Binds the operators to a spec and its tables."""
    return TorchSample(spec, state, torch.device(device))


class TorchSample:
    """A `Sample` of torch's operators. Subclasses may replace the steps on scores."""

    is_capturable = False  # the launches depend on the needs of each row
    write_row = staticmethod(write_row)

    def __init__(self, spec: SampleSpec, state: SampleState, device: torch.device) -> None:
        self._state = state
        self._counters = counters(spec.vocab_size, device)

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> Drawn:
        """Draws one token per row; see `Sample`."""
        scores = constrain(logits.to(torch.float32), rows, self._state)
        if rows.all_needs & Needs.NOISE:
            token_ids, best, processed = self._draw(scores, rows)
        else:
            token_ids, best = self._argmax(scores)
            processed = scores
        if rows.all_needs & Needs.CONTROLS:
            count_tokens(token_ids, rows, self._state)
        self._state.last_token.index_copy_(0, rows.slots, token_ids)
        packed = torch.stack((token_ids.to(torch.int32), self._failures(best)))
        return Drawn(packed=packed, processed=_select_processed(processed, rows))

    def _draw(
        self, scores: torch.Tensor, rows: SampleRows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draws in a step with sampled rows.

        Returns ids, the best score of each row as `_argmax` does, and processed scores. The latter
        are valid only if a row wants them.
        """
        random = rows.rows_with(Needs.NOISE)
        is_kept = bool(rows.all_needs & Needs.PROCESSED)
        if len(random) == len(rows.needs):
            table = self._state.table.index_select(0, rows.slots)
            scaled = _scale_and_filter(scores, rows, table)
            return *self._perturbed_argmax(scaled, table[:, Column.SEED], rows.positions), scaled
        part, at = rows.select(random)
        table = self._state.table.index_select(0, part.slots)
        scaled = _scale_and_filter(scores.index_select(0, at), part, table)
        token_ids, best = self._argmax(scores)
        drawn, drawn_best = self._perturbed_argmax(scaled, table[:, Column.SEED], part.positions)
        token_ids.index_copy_(0, at, drawn)
        best.index_copy_(0, at, drawn_best)
        return token_ids, best, scores.index_copy(0, at, scaled) if is_kept else scores

    def _argmax(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the lowest id with the largest score of each row, and that score.

        NaN is larger than any number, so the score shows every kind of failure.
        """
        best, token_ids = scores.max(dim=1)
        return token_ids, best

    def _failures(self, best: torch.Tensor) -> torch.Tensor:
        """Returns the `Failure` of each row from its best score: [n], int32."""
        is_bad = best.isfinite().logical_not_().to(torch.int32)
        return is_bad.masked_fill_(best == -torch.inf, Failure.NOTHING_LEFT)

    def _perturbed_argmax(
        self, scores: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns `_argmax` of the scores with each row's noise; `scores` are not modified."""
        bits = random_bits(row_keys(seeds, positions), self._counters, scores.shape[1])
        return self._argmax(gumbel_noise(bits).add_(scores))


def _select_processed(processed: torch.Tensor, rows: SampleRows) -> torch.Tensor | None:
    """Returns the processed scores of the rows that want them."""
    index = rows.rows_with(Needs.PROCESSED)
    if len(index) == 0:
        return None
    if len(index) == len(rows.needs):
        return processed
    return processed.index_select(0, upload(index, processed.device))


def _scale_and_filter(scores: torch.Tensor, rows: SampleRows, table: torch.Tensor) -> torch.Tensor:
    """Returns logits over temperature, -inf for tokens that min-p, top-k or top-p drop."""
    scaled = scores * floats(table, Column.INVERSE_TEMPERATURE).to(torch.float32).unsqueeze(1)
    filtered = rows.rows_with(Needs.FILTER)
    if len(filtered) == 0:
        return scaled
    if len(filtered) == len(rows.needs):
        _filter_rows(scaled, rows, table)
        return scaled
    part, at = rows.select(filtered)
    scores = scaled.index_select(0, at)
    _filter_rows(scores, part, table.index_select(0, at))
    return scaled.index_copy_(0, at, scores)


def _filter_rows(scores: torch.Tensor, rows: SampleRows, table: torch.Tensor) -> None:
    filter_(
        scores,
        table[:, Column.TOP_K],
        floats(table, Column.TOP_P),
        floats(table, Column.LOG_MIN_P),
        rows.max_top_k,
        rows.has_top_p,
    )
