"""sample through torch's operators, for any device."""

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
from openinfer_kernels.ops.sample._controls import constrain, count, enter, floats
from openinfer_kernels.ops.sample._filter import filter_
from openinfer_kernels.ops.sample._random import counters, gumbel_noise, random_bits, row_keys


def supports(spec: SampleSpec, device: torch.device) -> str | None:
    """Every spec on every device."""
    return None


def plan(spec: SampleSpec, state: SampleState, device: torch.device | str) -> Sample:
    """Binds sample."""
    return TorchSample(spec, state, torch.device(device))


class TorchSample:
    """A bound `sample`. What it does with a step's scores may be replaced."""

    is_recordable = False  # it works on the rows that the host knows to need it
    enter = staticmethod(enter)

    def __init__(self, spec: SampleSpec, state: SampleState, device: torch.device) -> None:
        self._state = state
        self._counters = counters(spec.vocab_size, device)

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> Drawn:
        """See `Sample`."""
        scores = constrain(logits.to(torch.float32), rows, self._state)
        if rows.all_needs & Needs.NOISE:
            token_ids, best, processed = self._draw(scores, rows)
        else:
            token_ids, best = self._argmax(scores)
            processed = scores
        if rows.all_needs & Needs.CONTROLS:
            count(token_ids, rows, self._state)
        self._state.last_token.index_copy_(0, rows.slots, token_ids)
        packed = torch.stack((token_ids.to(torch.int32), self._failures(best)))
        return Drawn(packed=packed, processed=_asked(processed, rows))

    def _draw(
        self, scores: torch.Tensor, rows: SampleRows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids of a step with random rows, what `_argmax` says of their scores, processed scores.

        The last are only right if a row wants them.
        """
        random = rows.need(Needs.NOISE)
        is_kept = bool(rows.all_needs & Needs.PROCESSED)
        if len(random) == len(rows.needs):
            table = self._state.table.index_select(0, rows.slots)
            scaled = _scale_and_filter(scores, rows, table)
            return *self._perturbed_argmax(scaled, table[:, Column.SEED], rows.positions), scaled
        part, at = rows.part(random)
        table = self._state.table.index_select(0, part.slots)
        scaled = _scale_and_filter(scores.index_select(0, at), part, table)
        token_ids, best = self._argmax(scores)
        drawn, drawn_best = self._perturbed_argmax(scaled, table[:, Column.SEED], part.positions)
        token_ids.index_copy_(0, at, drawn)
        best.index_copy_(0, at, drawn_best)
        return token_ids, best, scores.index_copy(0, at, scaled) if is_kept else scores

    def _argmax(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The lowest id of the largest score of each row, and that score.

        NaN wins over any number, so the score tells of NaN, of +inf and of a row with nothing left.
        """
        best, token_ids = scores.max(dim=1)
        return token_ids, best

    def _failures(self, best: torch.Tensor) -> torch.Tensor:
        """What the best score of each row says of it: [n], int32, of `Failure`."""
        is_bad = best.isfinite().logical_not_().to(torch.int32)
        return is_bad.masked_fill_(best == -torch.inf, Failure.NOTHING_LEFT)

    def _perturbed_argmax(
        self, scores: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`_argmax` after adding each row's noise; `scores` are left as they are."""
        bits = random_bits(row_keys(seeds, positions), self._counters, scores.shape[1])
        return self._argmax(gumbel_noise(bits).add_(scores))


def _asked(processed: torch.Tensor, rows: SampleRows) -> torch.Tensor | None:
    """Those of the rows that ask for them."""
    index = rows.need(Needs.PROCESSED)
    if len(index) == 0:
        return None
    if len(index) == len(rows.needs):
        return processed
    return processed.index_select(0, upload(index, processed.device))


def _scale_and_filter(scores: torch.Tensor, rows: SampleRows, table: torch.Tensor) -> torch.Tensor:
    """Logits over temperature, -inf where min-p, top-k or top-p rule a token out."""
    scaled = scores * floats(table, Column.INVERSE_TEMPERATURE).to(torch.float32).unsqueeze(1)
    filtered = rows.need(Needs.FILTER)
    if len(filtered) == 0:
        return scaled
    if len(filtered) == len(rows.needs):
        _filter_rows(scaled, rows, table)
        return scaled
    part, at = rows.part(filtered)
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
