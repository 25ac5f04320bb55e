"""Logits to tokens and logprobs, in one copy for the host.

Which work a step needs is known on the host (`SamplingRows`); everything else stays on the device
and is enqueued without waiting for it. The draw itself is `openinfer_kernels.Sample`.
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
    Failure,
    Needs,
    RecordableSample,
    SampleRows,
    SampleSpec,
    ScoreTokensSpec,
    plan_sample,
    plan_score_tokens,
    upload,
)
from openinfer_sampler._logprobs import LogprobLayout
from openinfer_sampler._rows import LOGPROBS, RAW_LOGPROBS, Indices, SamplingRows, TokenIds

CAPTURED_NEEDS = (0, Needs.FILTER | Needs.CONTROLS)
"""What `Sampler.capturable_needs` answers, besides None."""

MIN_SCORED_ROWS = 64
"""Rows that every sampler's `score_tokens` takes at once."""

_REASONS = {
    Failure.NOT_FINITE: "the logits of this sequence are NaN or infinite; no token can be drawn",
    Failure.NOTHING_LEFT: "every token of this sequence is ruled out; none can be drawn",
}
"""Why a row failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTokens:
    """What a step's sampling came to, on the host.

    Attributes:
        token_ids: [n], uint32. Of failed rows: some id of the vocabulary.
        failed: by row, why no token could be drawn.
        exhausted: rows of `failed` whose every token was ruled out.
        logprobs: by row, of rows whose request asks for them; one token each.
    """

    token_ids: npt.NDArray[np.uint32]
    failed: dict[int, str]
    exhausted: frozenset[int]
    logprobs: dict[int, TokenLogprobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """What a step's sampling came to, on the device.

    Attributes:
        num_rows: n.
        packed: [any], int32: everything the host wants to know, for one copy.
        layouts: of the logprobs in it.
    """

    num_rows: int
    packed: torch.Tensor
    layouts: tuple[LogprobLayout, ...] = ()

    @property
    def token_ids(self) -> torch.Tensor:
        """[n], int32."""
        return self.packed[: self.num_rows]

    def unpack(self, packed: npt.NDArray[np.int32]) -> HostTokens:
        """Reads `packed` once it has arrived on the host."""
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
        backend: str = "auto",
    ) -> None:
        """Allocates the tables and chooses what draws.

        Args:
            num_slots: sequences at most.
            vocab_size: columns of the logits.
            device: where the logits are.
            eos_token_ids: stop ids of every request that does not ignore them.
            max_stop_token_ids: stop ids of one request at most, besides those.
            backend: of `openinfer_kernels.plan_sample`.

        Raises:
            BackendUnavailable: the backend cannot run here.
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
        self._rows = SamplingRows(spec, state, self._draw.enter, self._device)
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
        """A sequence takes a slot; what the slot held before is forgotten.

        Args:
            slot: in [0, num_slots).
            request: whose `sampling`, `stop` and `logprobs` hold from now on.
            seed: unsigned 64-bit; the request's own, or one drawn for it.
            token_ids: [num_known], uint32: prompt and output so far; None: the request's prompt.
            num_output_tokens: how many of them, at the end, are output; None: the request's
                output prefix.

        Raises:
            RowTooSmall: it has more stop ids, bad words or ids of one than a row holds.
            ValueError: it names an id outside the vocabulary, or holds an empty bad word.
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
        """Draws one token a row. On a device it enqueues and returns.

        Args:
            logits: [n, vocab_size], any float dtype, left as they are.
            slots: [n], on the host: whose rows they are, none twice.
            positions: [n], int64, on the device: index in the sequence of the token to draw.
            device_slots: [n], int64, on the device: `slots`, if they are there already.
            masks: rows of the step, and for each of them [ceil(vocab_size / 32)], int32 on the
                device: a bit per id, least significant first, set where the id is allowed.
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
        """[num_slots], int64, on the device: the token drawn last; every draw enters its own."""
        return self._rows.state.last_token

    @property
    def is_capturable(self) -> bool:
        """Whether `draw_captured` may be recorded here."""
        return self._draw.is_recordable

    def capturable_needs(self, slots: Indices) -> int | None:
        """What `draw_captured` must have been told to serve these rows; sends their parameters.

        Args:
            slots: [n], on the host: whose rows they are.

        Returns:
            One of `CAPTURED_NEEDS`; None if there is nothing that could be recorded.
        """
        if not self.is_capturable:
            return None
        needs = self._rows.all_needs(slots)
        self._rows.send()
        return CAPTURED_NEEDS[bool(needs & (Needs.FILTER | Needs.CONTROLS))]

    def draw_captured(
        self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, needs: int
    ) -> SampledTokens:
        """Draws one token a row; may be recorded and replayed over other contents of the tensors.

        Logprobs that rows ask for are left to `add_logprobs`.

        Args:
            logits: [n, vocab_size], any float dtype.
            slots: [n], int64, on the device: whose rows they are. A slot that was never set may
                stand there more than once.
            positions: [n], int64, on the device.
            needs: of `capturable_needs`, for all rows of all replays.
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
        """Scores what `draw_captured` has drawn, in the rows that ask for it. Enqueues and returns.

        Rows that do not ask are not read, so that they pay for the launches at most.

        Args:
            sampled: of the draw before.
            logits: as they were drawn from.
            device_slots: of the draw.
            positions: of the draw.
            needs: of the draw.
            slots: [m], on the host: of the rows that are more than padding.
            at: [m], on the host: which rows of the draw they are.

        Returns:
            The same tokens with the logprobs; `sampled` itself if none are asked for.
        """
        wanted = self._rows.all_needs(slots)
        if not wanted & LOGPROBS:
            return sampled
        processed = None
        if wanted & Needs.PROCESSED:
            rows = SampleRows(device_slots, positions, np.full(len(logits), needs, np.int64))
            packed = sampled.packed.view(2, -1)
            asked = at[self._rows.with_need(slots, Needs.PROCESSED)]
            processed = cast(RecordableSample, self._draw).processed(logits, rows, packed, asked)
        return self._with_logprobs(sampled, logits, processed, slots, at)

    def score_tokens(
        self, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
    ) -> torch.Tensor:
        """Logprobs of given tokens and of the most likely ones. Enqueues and returns.

        Args:
            logits: [n, vocab_size], any float dtype; n at most the larger of `num_slots` and
                `MIN_SCORED_ROWS`.
            token_ids: [n], int32, on the device: the token of each row.
            num_top: most likely tokens wanted, at most vocab_size.

        Returns:
            [n, 2 + 2 * num_top], int32, for `unpack_scores`.
        """
        rows = np.arange(len(logits))
        return self._score(logits, token_ids, rows, num_top, np.zeros((len(rows), 0), np.int64))

    def sample_costliest(self, logits: torch.Tensor) -> None:
        """Runs the costliest step there is, for those who measure its memory.

        Args:
            logits: [n, vocab_size], n at most `num_slots`. Slots 0 to n - 1 are overwritten.
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
        """`sampled` with the logprobs that `slots` ask for, which are in rows `at`.

        `processed` has the rows that ask for it alone.
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
