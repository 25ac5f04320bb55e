"""Logits to tokens and logprobs, packed into one tensor for the host.

The host knows which kernels a step needs (`SamplingRows`) and enqueues them without waiting for the
device. The draw itself is `openinfer_kernels.Sample`.
"""

from dataclasses import dataclass, replace
from typing import cast

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
from openinfer_kernels import (
    CapturableSample,
    Failure,
    Needs,
    SampleRows,
    SampleSpec,
    ScoreTokensSpec,
    plan_sample,
    plan_score_tokens,
    upload,
)
from openinfer_sampler._logprobs import LogprobLayout
from openinfer_sampler._sampling_rows import LOGPROBS, RAW_LOGPROBS, Indices, SamplingRows, TokenIds

CAPTURED_NEEDS = (0, Needs.FILTER | Needs.CONTROLS)
"""Results of `Sampler.capturable_needs`, besides None."""

MIN_SCORED_ROWS = 64
"""Rows that `Sampler.score_tokens` accepts at once, even if the sampler has fewer slots."""

_REASONS = {
    Failure.NOT_FINITE: "the logits of this sequence are NaN or infinite; no token can be drawn",
    Failure.NOTHING_LEFT: "every token of this sequence is ruled out; none can be drawn",
}
"""Messages of failed rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTokens:
    """Result of a step's sampling, on the host.

    Attributes:
        token_ids: [n], uint32. A failed row has an arbitrary id of the vocabulary.
        failed: Reason why no token could be drawn, by row.
        exhausted: Rows of `failed` in which every token was ruled out.
        logprobs: Logprobs of one token, by row, for rows whose request wants them.
    """

    token_ids: npt.NDArray[np.uint32]
    failed: dict[int, str]
    exhausted: frozenset[int]
    logprobs: dict[int, TokenLogprobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """Result of a step's sampling, on the device.

    Attributes:
        num_rows: Number of rows, n.
        packed: [any], int32: token ids, failures and logprobs, for one copy to the host.
        layouts: Layouts of the logprobs in `packed`.
    """

    num_rows: int
    packed: torch.Tensor
    layouts: tuple[LogprobLayout, ...] = ()

    @property
    def token_ids(self) -> torch.Tensor:
        """[n], int32."""
        return self.packed[: self.num_rows]

    def unpack(self, packed: npt.NDArray[np.int32]) -> HostTokens:
        """Returns the result, from the numbers of `packed` on the host."""
        num_rows = self.num_rows
        failures = packed[num_rows : 2 * num_rows]
        failed = {row: int(failures[row]) for row in failures.nonzero()[0].tolist()}
        logprobs: dict[int, TokenLogprobs] = {}
        begin = 2 * num_rows
        for layout in self.layouts:
            end = begin + len(layout.rows) * layout.width
            logprobs |= layout.unpack(packed[begin:end])
            begin = end
        return HostTokens(
            token_ids=packed[:num_rows].astype(np.uint32),
            failed={row: _REASONS[why] for row, why in failed.items()},
            exhausted=frozenset(r for r, why in failed.items() if why == Failure.NOTHING_LEFT),
            logprobs=logprobs,
        )


class Sampler:
    """Draws tokens for up to `num_slots` sequences. Use from one thread, on one stream.

    Random numbers depend on (seed, position, token id) alone. A sequence therefore gets the same
    numbers alone, in any batch, and after a preemption or a prefix hit. If its logits have the same
    bits, it gets the same tokens.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        vocab_size: int,
        device: torch.device | str,
        eos_token_ids: tuple[int, ...] = (),
        max_stop_token_ids: int = 64,
        backend: str = "auto",
    ) -> None:
        """Allocates the tables and chooses the back end of the draw.

        Args:
            num_slots: Upper bound on the number of sequences.
            vocab_size: Columns of the logits.
            device: Device of the logits.
            eos_token_ids: Stop ids of every request that does not ignore them.
            max_stop_token_ids: Upper bound on the other stop ids of one request.
            backend: Back end, see `openinfer_kernels.plan_sample`.

        Raises:
            BackendUnavailable: The back end cannot run here.
        """
        self._device = torch.device(device)
        self._eos_token_ids = eos_token_ids
        spec = SampleSpec(
            vocab_size=vocab_size,
            num_slots=num_slots,
            max_rows=num_slots,
            max_stop_ids=max(1, max_stop_token_ids + len(eos_token_ids)),
        )
        state = spec.allocate(self._device)
        self._draw = plan_sample(spec, state, self._device, backend)
        self._rows = SamplingRows(spec, state, self._draw.write_row, self._device)
        max_scored = max(num_slots, MIN_SCORED_ROWS)
        scored = ScoreTokensSpec(vocab_size=vocab_size, max_rows=max_scored)
        self._score = plan_score_tokens(scored, self._device)

    def set(
        self,
        slot: int,
        request: GenerateRequest,
        *,
        seed: int,
        token_ids: TokenIds | None = None,
        num_output_tokens: int | None = None,
    ) -> None:
        """Sets the parameters of a slot to those of a request.

        Args:
            slot: Slot in [0, num_slots).
            request: Request with `sampling`, `stop` and `logprobs`.
            seed: Unsigned 64-bit seed of the request, or one that was drawn for it.
            token_ids: [num_known], uint32: prompt and output tokens so far; None means the
                request's prompt.
            num_output_tokens: Number of output tokens at the end of `token_ids`; None means the
                request's output prefix.

        Raises:
            RowTooSmall: The request has more stop ids, bad words or ids of a bad word than a row
                holds.
            ValueError: The request names an id outside the vocabulary or has an empty bad word.
        """
        if token_ids is None:
            token_ids = np.frombuffer(request.prompt_token_ids, "<u4")
        if num_output_tokens is None:
            num_output_tokens = request.num_output_prefix
        self._rows.set(slot, request, seed, self._eos_token_ids, token_ids, num_output_tokens)

    def sample(
        self,
        logits: torch.Tensor,
        slots: Indices,
        positions: torch.Tensor,
        *,
        device_slots: torch.Tensor | None = None,
        masks: tuple[Indices, torch.Tensor] | None = None,
    ) -> SampledTokens:
        """Draws one token per row. On a GPU it enqueues the draw and returns.

        Args:
            logits: [n, vocab_size], any float dtype; not changed.
            slots: [n], on the host: slot of each row, all different.
            positions: [n], int64, on the device: sequence index of the token to draw.
            device_slots: [n], int64, on the device: `slots`, if they are there already.
            masks: Rows with a mask, and their masks [num_masks, ceil(vocab_size / 32)], int32 on
                the device. Each id has a bit, least significant first, set where it is allowed.
        """
        rows = self._rows.rows(slots, positions, device_slots, masks)
        drawn = self._draw(logits, rows)
        sampled = SampledTokens(num_rows=len(slots), packed=drawn.packed.view(-1))
        if not rows.all_needs & LOGPROBS:
            return sampled
        at = np.arange(len(slots))
        return self._with_logprobs(sampled, logits, drawn.processed, slots, at)

    @property
    def last_token(self) -> torch.Tensor:
        """[num_slots], int64, on the device: the token drawn last. Every draw updates it."""
        return self._rows.state.last_token

    @property
    def is_capturable(self) -> bool:
        """Whether `draw_captured` may be captured with this back end."""
        return self._draw.is_capturable

    def capturable_needs(self, slots: Indices) -> int | None:
        """Sends changed parameters and returns which captured draw serves these rows.

        Args:
            slots: [n], on the host: slot of each row.

        Returns:
            One of `CAPTURED_NEEDS`; None if the back end cannot be captured.
        """
        if not self.is_capturable:
            return None
        needs = self._rows.all_needs(slots)
        self._rows.send()
        return CAPTURED_NEEDS[bool(needs & (Needs.FILTER | Needs.CONTROLS))]

    def draw_captured(
        self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, needs: int
    ) -> SampledTokens:
        """Draws one token per row; may be captured, and replayed with new contents of the tensors.

        It computes no logprobs, see `add_logprobs`.

        Args:
            logits: [n, vocab_size], any float dtype.
            slots: [n], int64, on the device: slot of each row. A slot that was never set may occur
                more than once.
            positions: [n], int64, on the device: sequence index of the token to draw.
            needs: One of `CAPTURED_NEEDS`, for all rows of all replays.
        """
        rows = SampleRows(slots, positions, np.full(len(slots), needs, np.int64))
        drawn = self._draw(logits, rows)
        return SampledTokens(num_rows=len(slots), packed=drawn.packed.view(-1))

    def add_logprobs(
        self,
        sampled: SampledTokens,
        logits: torch.Tensor,
        device_slots: torch.Tensor,
        positions: torch.Tensor,
        needs: int,
        *,
        slots: Indices,
        at: Indices,
    ) -> SampledTokens:
        """Enqueues the logprobs of tokens that `draw_captured` has drawn, where rows want them.

        Only the logits of rows that want logprobs are read.

        Args:
            sampled: Result of the draw.
            logits: Argument of the draw.
            device_slots: Argument of the draw.
            positions: Argument of the draw.
            needs: Argument of the draw.
            slots: [m], on the host: slots of the rows that are sampled.
            at: [m], on the host: rows of the draw that are sampled.

        Returns:
            The same tokens with logprobs; `sampled` itself if no row wants them.
        """
        wanted = self._rows.all_needs(slots)
        if not wanted & LOGPROBS:
            return sampled
        processed = None
        if wanted & Needs.PROCESSED:
            rows = SampleRows(device_slots, positions, np.full(len(logits), needs, np.int64))
            packed = sampled.packed.view(2, -1)
            asked = at[self._rows.with_need(slots, Needs.PROCESSED)]
            processed = cast(CapturableSample, self._draw).processed(logits, rows, packed, asked)
        return self._with_logprobs(sampled, logits, processed, slots, at)

    def score_tokens(
        self, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
    ) -> torch.Tensor:
        """Enqueues the logprobs of given tokens and of the most likely ones.

        Args:
            logits: [n, vocab_size], any float dtype; n is at most the larger of `num_slots` and
                `MIN_SCORED_ROWS`.
            token_ids: [n], int32, on the device: token of each row.
            num_top: Number of most likely tokens, at most `vocab_size`.

        Returns:
            [n, 2 + 2 * num_top], int32, for `unpack_scores`.
        """
        rows = np.arange(len(logits))
        return self._score(logits, token_ids, rows, num_top, np.zeros((len(rows), 0), np.int64))

    def sample_costliest(self, logits: torch.Tensor) -> None:
        """Samples with every control at once, to measure the memory of the costliest step.

        Args:
            logits: [n, vocab_size]; n is at most `num_slots`. Slots 0 to n - 1 are overwritten.
        """
        costly = GenerateRequest(
            request_id="",
            prompt_token_ids=pack_ids([0]),
            stop=StopRules(max_tokens=2, min_tokens=1, stop_token_ids=(0,)),
            sampling=Sampling(
                top_p=0.5,
                repetition_penalty=2.0,
                logit_bias=((0, 1.0),),
                bad_words=(pack_ids([0, 0]),),
            ),
            logprobs=LogprobOptions(num_top=1, mode="processed"),
        )
        self.set(0, costly, seed=0)
        self._rows.repeat_first(len(logits))
        positions = torch.zeros(len(logits), dtype=torch.int64, device=self._device)
        self.sample(logits, np.arange(len(logits)), positions)

    def _with_logprobs(
        self,
        sampled: SampledTokens,
        logits: torch.Tensor,
        processed: torch.Tensor | None,
        slots: Indices,
        at: Indices,
    ) -> SampledTokens:
        """Returns `sampled` with the logprobs that slots want.

        Args:
            sampled: Drawn tokens.
            logits: [n, vocab_size].
            processed: Processed logits of the rows that want processed logprobs; None if none do.
            slots: [m], on the host: slots of the sampled rows.
            at: [m], on the host: the sampled rows.
        """
        parts, layouts = [sampled.packed], []
        for need in (RAW_LOGPROBS, Needs.PROCESSED):
            index = self._rows.with_need(slots, need)
            if len(index) == 0:
                continue
            num_top, by_id = self._rows.logprobs_of(slots[index])
            layout = LogprobLayout(rows=at[index], num_top=num_top, by_id=by_id)
            scores, token_ids, rows = logits, sampled.token_ids, layout.rows
            if need == Needs.PROCESSED:
                assert processed is not None
                token_ids = token_ids.index_select(0, upload(rows, self._device))
                scores, rows = processed, np.arange(len(rows))
            packed = self._score(scores, token_ids, rows, layout.max_top, layout.wanted)
            parts.append(packed.view(-1))
            layouts.append(layout)
        return replace(sampled, packed=torch.cat(parts), layouts=tuple(layouts))
