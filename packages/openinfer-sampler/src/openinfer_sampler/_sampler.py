"""Logits to tokens: bias and masks, temperature, filters, draw, logprobs, in this order.

Which work a step needs is known on the host (`SamplingRows.needs`); everything else stays on the
device and is enqueued without waiting for it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from openinfer_contract import (
    GenerateRequest,
    LogprobOptions,
    Sampling,
    StopRules,
    TokenLogprobs,
    pack_ids,
)
from openinfer_sampler._filter import filter_
from openinfer_sampler._logprobs import LogprobLayout, pack_logprobs
from openinfer_sampler._random import GumbelNoise, row_keys
from openinfer_sampler._rows import Column, Needs, SamplingRows, StepRows, floats
from openinfer_sampler._upload import upload

Indices = npt.NDArray[np.int64]

NOT_FINITE = (
    "the logits of this sequence are NaN or infinite, or every token is ruled out; "
    "no token can be drawn"
)
"""Why a row failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTokens:
    """What a step's sampling came to, on the host.

    Attributes:
        token_ids: [n], uint32. Of failed rows: some id of the vocabulary.
        failed: by row, why no token could be drawn.
        logprobs: by row, of rows whose request asks for them; one token each.
    """

    token_ids: npt.NDArray[np.uint32]
    failed: dict[int, str]
    logprobs: dict[int, TokenLogprobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """What a step's sampling came to, on the device.

    Attributes:
        token_ids: [n], int64. Of failed rows: some id of the vocabulary.
        packed: [any], int32: everything the host wants to know, for one copy.
    """

    token_ids: torch.Tensor
    packed: torch.Tensor
    layouts: tuple[LogprobLayout, ...]

    def unpack(self, packed: npt.NDArray[np.int32]) -> HostTokens:
        """Reads `packed` once it has arrived on the host."""
        num_rows = len(self.token_ids)
        failed = {int(row): NOT_FINITE for row in packed[num_rows : 2 * num_rows].nonzero()[0]}
        logprobs: dict[int, TokenLogprobs] = {}
        begin = 2 * num_rows
        for layout in self.layouts:
            end = begin + len(layout.rows) * layout.width
            logprobs |= layout.unpack(packed[begin:end])
            begin = end
        return HostTokens(
            token_ids=packed[:num_rows].astype(np.uint32), failed=failed, logprobs=logprobs
        )


class Sampler:
    """Draws tokens for up to `num_slots` sequences. One thread, one stream.

    Randomness depends on (seed, position, token id) alone: a sequence gets the same random numbers
    alone, in any batch, after a preemption or a prefix hit, and the same tokens wherever its
    logits are the same bits.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        vocab_size: int,
        device: torch.device | str,
        eos_token_ids: tuple[int, ...] = (),
        max_stop_token_ids: int = 64,
    ) -> None:
        """Allocates the rows.

        Args:
            num_slots: sequences at most.
            vocab_size: columns of the logits.
            device: where the logits are.
            eos_token_ids: stop ids of every request that does not ignore them.
            max_stop_token_ids: stop ids of one request at most, besides those.
        """
        self._device = torch.device(device)
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._noise = GumbelNoise(vocab_size, self._device)
        room = max_stop_token_ids + len(eos_token_ids)
        self._rows = SamplingRows(num_slots, vocab_size, room, self._device)

    def set(self, slot: int, request: GenerateRequest, *, seed: int) -> None:
        """A sequence takes a slot; what the slot held before is forgotten.

        Args:
            slot: in [0, num_slots).
            request: whose `sampling`, `stop` and `logprobs` hold from now on.
            seed: unsigned 64-bit; the request's own, or one drawn for it.

        Raises:
            UnsupportedControl: the request uses a control that is not in `HONOURED`.
            ValueError: it has more stop ids than a row holds, or asks for the logprob of an id
                outside the vocabulary.
        """
        self._rows.set(slot, request, seed, self._eos_token_ids)

    def sample(
        self,
        logits: torch.Tensor,
        slots: npt.NDArray[np.int64],
        positions: torch.Tensor,
        *,
        masks: tuple[Indices, torch.Tensor] | None = None,
    ) -> SampledTokens:
        """Draws one token a row. On a device it enqueues and returns.

        Args:
            logits: [n, vocab_size], any float dtype, left as they are.
            slots: [n], on the host: whose rows they are.
            positions: [n], int64, on the device: index in the sequence of the token to draw.
            masks: rows of the step, and for each of them [ceil(vocab_size / 32)], int32 on the
                device: a bit per id, least significant first, set where the id is allowed.
        """
        step = self._rows.step(slots, positions)
        raw = logits.to(torch.float32)
        scores = self._constrain(raw, step, masks)
        if len(step.need(Needs.NOISE)):
            token_ids, best, processed = self._draw(scores, step)
        else:
            token_ids, best = _argmax(scores)
            processed = scores
        return self._pack(raw, processed, token_ids, best, step)

    def rehearse(self, logits: torch.Tensor) -> None:
        """Runs the costliest step there is, for those who measure its memory.

        Args:
            logits: [n, vocab_size], n at most `num_slots`. Slots 0 to n - 1 are overwritten.
        """
        costly = GenerateRequest(
            request_id="",
            prompt_token_ids=pack_ids([0]),
            stop=StopRules(max_tokens=1),
            sampling=Sampling(top_p=0.5),
            logprobs=LogprobOptions(num_top=1, mode="processed"),
        )
        for slot in range(len(logits)):
            self.set(slot, costly, seed=slot)
        positions = torch.zeros(len(logits), dtype=torch.int64, device=self._device)
        self.sample(logits, np.arange(len(logits)), positions)

    def _constrain(
        self,
        raw: torch.Tensor,
        step: StepRows,
        masks: tuple[Indices, torch.Tensor] | None,
    ) -> torch.Tensor:
        """The logits without ids that must not be drawn; `raw` itself if there are none."""
        held_back = step.need(Needs.MIN_TOKENS)
        if len(held_back) == 0 and masks is None:
            return raw
        scores = raw.clone()
        if masks is not None:
            rows, bits = masks
            lanes = torch.arange(32, dtype=torch.int32, device=self._device)
            is_allowed = (bits.unsqueeze(2) >> lanes).bitwise_and_(1).flatten(1)
            is_allowed = is_allowed[:, : self._vocab_size]
            index = upload(rows, self._device)
            masked = scores.index_select(0, index).masked_fill_(is_allowed == 0, -torch.inf)
            scores.index_copy_(0, index, masked)
        if len(held_back):
            index = upload(held_back, self._device)
            part = step.part(held_back, index)
            is_early = part.positions < part.table[:, Column.FIRST_STOP_POSITION]
            cells = (index.unsqueeze(1), part.table[:, Column.STOP_IDS :])
            scores[cells] = scores[cells].masked_fill_(is_early.unsqueeze(1), -torch.inf)
        return scores

    def _draw(
        self, scores: torch.Tensor, step: StepRows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids of a step with random rows, what `_argmax` says of their scores, processed logits.

        The last are only right if a row wants them.
        """
        random = step.need(Needs.NOISE)
        is_kept = len(step.need(Needs.PROCESSED_LOGPROBS)) > 0
        if len(random) == len(step.slots):
            scaled = _scale_and_filter(scores, step, self._device)
            return *_argmax(self._perturb(scaled, step, is_kept)), scaled
        index = upload(random, self._device)
        part = step.part(random, index)
        scaled = _scale_and_filter(scores.index_select(0, index), part, self._device)
        drawn = self._perturb(scaled, part, is_kept).argmax(dim=1)
        token_ids, best = _argmax(scores)
        token_ids.index_copy_(0, index, drawn)
        return token_ids, best, scores.index_copy(0, index, scaled) if is_kept else scores

    def _perturb(self, scaled: torch.Tensor, step: StepRows, is_kept: bool) -> torch.Tensor:
        """Scores plus noise; in place unless `scaled` is kept."""
        perturbed = scaled.clone() if is_kept else scaled
        self._noise.add_(perturbed, row_keys(step.table[:, Column.SEED], step.positions))
        return perturbed

    def _pack(
        self,
        raw: torch.Tensor,
        processed: torch.Tensor,
        token_ids: torch.Tensor,
        best: torch.Tensor,
        step: StepRows,
    ) -> SampledTokens:
        parts = [token_ids, best.isfinite().logical_not_()]
        layouts = []
        sources = ((Needs.RAW_LOGPROBS, raw), (Needs.PROCESSED_LOGPROBS, processed))
        for need, scores in sources:
            rows = step.need(need)
            if len(rows) == 0:
                continue
            layout = self._layout(rows, step.slots[rows])
            ids = token_ids
            if len(rows) < len(step.slots):
                index = upload(rows, self._device)
                scores, ids = scores.index_select(0, index), ids.index_select(0, index)
            parts.append(pack_logprobs(scores, ids, layout).flatten())
            layouts.append(layout)
        packed = torch.cat([part.to(torch.int32) for part in parts])
        return SampledTokens(token_ids=token_ids, packed=packed, layouts=tuple(layouts))

    def _layout(self, rows: Indices, slots: Indices) -> LogprobLayout:
        return LogprobLayout(
            rows=rows,
            num_top=self._rows.num_top[slots].tolist(),
            by_id=[self._rows.by_id[slot] for slot in slots],
        )


def _scale_and_filter(scores: torch.Tensor, step: StepRows, device: torch.device) -> torch.Tensor:
    """Logits over temperature, -inf where top-k, top-p or min-p rule a token out."""
    inverse = floats(step.table, Column.INVERSE_TEMPERATURE).to(torch.float32)
    scaled = scores * inverse.unsqueeze(1)
    filtered = step.need(Needs.FILTER)
    if len(filtered) == 0:
        return scaled
    part, index = scaled, None
    if len(filtered) < len(step.slots):
        index = upload(filtered, device)
        part, step = scaled.index_select(0, index), step.part(filtered, index)
    max_top_k, has_top_p = step.filter_bounds()
    filter_(
        part,
        step.table[:, Column.TOP_K],
        floats(step.table, Column.TOP_P),
        floats(step.table, Column.LOG_MIN_P),
        max_top_k,
        has_top_p,
    )
    return part if index is None else scaled.index_copy_(0, index, part)


def _argmax(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest id of the largest score of each row, and that score.

    NaN wins over any number, so the score tells of NaN, of +inf and of a row with nothing left.
    """
    best, token_ids = scores.max(dim=1)
    return token_ids, best
