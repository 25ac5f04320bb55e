"""Sampling parameters of every sequence, in tables on the device, one row per slot.

The host keeps a copy of the parameters that decide which kernels a step needs. A row without
controls then costs nothing extra, and no step reads anything back from the device.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from openinfer_contract import GenerateRequest, Sampling
from openinfer_kernels import (
    IN_PROMPT,
    PADDING,
    Column,
    Needs,
    SampleRows,
    SampleSpec,
    SampleState,
    upload,
)
from openinfer_sampler.errors import RowTooSmall

HONOURED = frozenset(
    {
        "sampling.seed",
        "sampling.repetition_penalty",
        "sampling.presence_penalty",
        "sampling.frequency_penalty",
        "sampling.logit_bias",
        "sampling.allowed_token_ids",
        "sampling.bad_words",
        "stop.min_tokens",
        "logprobs",
        "logprobs.token_ids",
        "logprobs.mode",
    }
)
"""The names of `openinfer_contract.FEATURES` that this sampler honours."""

RAW_LOGPROBS = 1 << 16
"""Bit of a row's needs: it wants raw logprobs. The other bits are those of `Needs`."""

LOGPROBS = RAW_LOGPROBS | Needs.PROCESSED

Indices = npt.NDArray[np.int64]
TokenIds = npt.NDArray[np.uint32]


class SamplingRows:
    """Sampling parameters by slot.

    Args:
        spec: Sizes of the tables.
        state: Tables on the device.
        write_row: `openinfer_kernels.Sample.write_row`, which writes values into a row of a table.
        device: Device of the tables.

    Attributes:
        state: Tables on the device.
    """

    def __init__(
        self,
        spec: SampleSpec,
        state: SampleState,
        write_row: Callable[[torch.Tensor, Indices, npt.NDArray[Any]], None],
        device: torch.device,
    ) -> None:
        self._spec = spec
        self._device = device
        self._write_row = write_row
        self.state = state
        num_slots = spec.num_slots
        self._host = np.zeros((num_slots, Column.STOP_IDS + spec.max_stop_ids), np.int64)
        self._needs = np.zeros(num_slots, np.int64)
        self._stale: set[int] = set()
        self._num_top = np.zeros(num_slots, np.int64)
        self._by_id: list[Indices] = [np.zeros(0, np.int64)] * num_slots

    def set(
        self,
        slot: int,
        request: GenerateRequest,
        seed: int,
        eos_token_ids: tuple[int, ...],
        token_ids: TokenIds,
        num_output_tokens: int,
    ) -> None:
        """See `Sampler.set`."""
        stop_ids = _stop_ids(request, eos_token_ids, self._spec.vocab_size)
        _check_size("stop.stop_token_ids", len(stop_ids), self._spec.max_stop_ids)
        words = [_ids(word) for word in request.sampling.bad_words]
        self._check_words(words)
        by_id = _ids(request.logprobs.token_ids if request.logprobs else b"")
        self._check_ids("logprobs.token_ids", by_id)
        bias_ids, bias = _bias(request.sampling)
        self._check_ids("sampling.logit_bias", bias_ids)
        allowed = request.sampling.allowed_token_ids
        allowed_ids = None if allowed is None else _ids(allowed)
        if allowed_ids is not None:
            self._check_ids("sampling.allowed_token_ids", allowed_ids)

        needs = self._needs_of(request, has_stop_ids=bool(stop_ids))
        self._fill(self._host[slot], request, seed, stop_ids, needs)
        self._stale.add(slot)
        self._needs[slot] = needs
        self._num_top[slot] = 0
        if request.logprobs is not None:
            self._num_top[slot] = min(request.logprobs.num_top, self._spec.vocab_size)
        self._by_id[slot] = by_id
        prompt, output = np.split(token_ids, [len(token_ids) - num_output_tokens])
        if needs & Needs.BIAS:
            self._set_bias(slot, bias_ids, bias, allowed_ids)
        if needs & Needs.PENALTIES:
            self._set_counts(slot, prompt, output)
        if needs & Needs.BAD_WORDS:
            self._set_bad_words(slot, words, output, len(prompt))

    def repeat_first(self, num_slots: int) -> None:
        """Copies the parameters of slot 0 to slots below `num_slots`, without counts and biases."""
        self._host[:num_slots] = self._host[0]
        self._needs[:num_slots] = self._needs[0]
        self._num_top[:num_slots] = self._num_top[0]
        self._by_id[:num_slots] = [self._by_id[0]] * num_slots
        self._stale.update(range(num_slots))

    def rows(
        self,
        slots: Indices,
        positions: torch.Tensor,
        device_slots: torch.Tensor | None,
        masks: tuple[Indices, torch.Tensor] | None,
    ) -> SampleRows:
        """Sends changed parameters and returns the rows of one step."""
        self.send()
        needs = self._needs[slots]
        max_top_k, has_top_p = self._filter_bounds(slots[(needs & Needs.FILTER) != 0])
        return SampleRows(
            upload(slots, self._device) if device_slots is None else _aligned(device_slots),
            _aligned(positions),
            needs,
            max_top_k=max_top_k,
            has_top_p=has_top_p,
            masks=masks,
        )

    def send(self) -> None:
        """Sends the parameters that changed to the device."""
        if self._stale:
            stale = np.fromiter(self._stale, np.int64)
            self._stale.clear()
            changed = upload(self._host[stale], self._device)
            self.state.table.index_copy_(0, upload(stale, self._device), changed)

    def all_needs(self, slots: Indices) -> int:
        """Returns the union of the slots' needs."""
        return int(np.bitwise_or.reduce(self._needs[slots]))

    def with_need(self, slots: Indices, need: int) -> Indices:
        """Returns the indices of the slots that have any bit of `need`."""
        return (self._needs[slots] & need).nonzero()[0]

    def _filter_bounds(self, slots: Indices) -> tuple[int, bool]:
        """Returns the largest active top_k (0 if there is none), and whether any row has top_p."""
        if not len(slots):
            return 0, False
        top_k = self._host[slots, Column.TOP_K]
        top_k = top_k[top_k < self._spec.vocab_size]
        top_p = self._host.view(np.float64)[slots, Column.TOP_P]
        return int(top_k.max(initial=0)), bool((top_p < 1.0).any())

    def logprobs_of(self, slots: Indices) -> tuple[list[int], list[Indices]]:
        """Returns the number of top tokens and the token ids whose logprobs each slot wants."""
        return self._num_top[slots].tolist(), [self._by_id[slot] for slot in slots]

    def _needs_of(self, request: GenerateRequest, *, has_stop_ids: bool) -> int:
        sampling, logprobs = request.sampling, request.logprobs
        needs = 0
        if not sampling.is_greedy:
            needs |= Needs.NOISE
            has_top_k = self._top_k(sampling) < self._spec.vocab_size
            if has_top_k or sampling.top_p < 1.0 or sampling.min_p > 0.0:
                needs |= Needs.FILTER
        if request.stop.min_tokens > 0 and has_stop_ids:
            needs |= Needs.MIN_TOKENS
        if sampling.logit_bias or sampling.allowed_token_ids is not None:
            needs |= Needs.BIAS
        if (
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
        ):
            needs |= Needs.PENALTIES
        if sampling.bad_words:
            needs |= Needs.BAD_WORDS
        if logprobs is not None:
            needs |= RAW_LOGPROBS if logprobs.mode == "raw" else Needs.PROCESSED
        return needs

    def _top_k(self, sampling: Sampling) -> int:
        vocab_size = self._spec.vocab_size
        return min(sampling.top_k or vocab_size, vocab_size)

    def _fill(
        self,
        row: npt.NDArray[np.int64],
        request: GenerateRequest,
        seed: int,
        stop_ids: list[int],
        needs: int,
    ) -> None:
        sampling = request.sampling
        floats = row.view(np.float64)
        first_output = request.num_prompt_tokens - request.num_output_prefix
        row[Column.NEEDS] = needs
        row[Column.SEED] = np.uint64(seed).astype(np.int64)
        row[Column.FIRST_OUTPUT_POSITION] = first_output
        row[Column.FIRST_STOP_POSITION] = first_output + request.stop.min_tokens
        row[Column.TOP_K] = self._top_k(sampling)
        is_greedy = sampling.is_greedy
        floats[Column.INVERSE_TEMPERATURE] = 1.0 if is_greedy else 1.0 / sampling.temperature
        floats[Column.TOP_P] = sampling.top_p
        floats[Column.LOG_MIN_P] = math.log(sampling.min_p) if sampling.min_p else -math.inf
        floats[Column.REPETITION_PENALTY] = sampling.repetition_penalty
        floats[Column.PRESENCE_PENALTY] = sampling.presence_penalty
        floats[Column.FREQUENCY_PENALTY] = sampling.frequency_penalty
        if stop_ids:
            row[Column.STOP_IDS :] = stop_ids[0]
            row[Column.STOP_IDS : Column.STOP_IDS + len(stop_ids)] = stop_ids

    def _set_bias(
        self,
        slot: int,
        ids: Indices,
        bias: npt.NDArray[np.float32],
        allowed_ids: Indices | None,
    ) -> None:
        row = self.state.bias[slot]
        row.fill_(0.0 if allowed_ids is None else -torch.inf)
        if allowed_ids is not None:
            ids = np.concatenate((allowed_ids, ids))
            bias = np.concatenate((np.zeros(len(allowed_ids), np.float32), bias))
        unique, at = np.unique(ids, return_inverse=True)
        values = np.zeros(len(unique), np.float32)
        if allowed_ids is not None:
            values[~np.isin(unique, allowed_ids)] = -np.inf
        np.add.at(values, at, bias)
        self._write_row(row, unique, values)

    def _set_counts(self, slot: int, prompt: TokenIds, output: TokenIds) -> None:
        unique, at = np.unique(np.concatenate((prompt, output)), return_inverse=True)
        counts = np.bincount(at[len(prompt) :], minlength=len(unique)).astype(np.int32)
        counts[at[: len(prompt)]] += IN_PROMPT
        self._write_row(self.state.counts[slot].zero_(), unique.astype(np.int64), counts)

    def _set_bad_words(
        self, slot: int, words: list[Indices], output: TokenIds, first_output: int
    ) -> None:
        length = self._spec.max_bad_word_ids
        table = np.full((self._spec.max_bad_words, length), PADDING, np.int32)
        for row, ids in enumerate(words):
            table[row, length - len(ids) :] = ids
        self.state.bad_words[slot].copy_(upload(table, self._device))
        recent = np.zeros(length, np.int32)
        last = output[-length:]
        first = first_output + len(output) - len(last)
        recent[np.arange(first, first + len(last)) % length] = last
        self.state.recent[slot].copy_(upload(recent, self._device))

    def _check_words(self, words: list[Indices]) -> None:
        field = "sampling.bad_words"
        _check_size(field, len(words), self._spec.max_bad_words)
        for ids in words:
            if not len(ids):
                raise ValueError(f"{field} must not hold an empty word")
            _check_size(f"a word of {field}", len(ids), self._spec.max_bad_word_ids)
            self._check_ids(field, ids)

    def _check_ids(self, field: str, ids: Indices) -> None:
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._spec.vocab_size:
            raise ValueError(f"{field} must be below {self._spec.vocab_size}")


def _check_size(field: str, got: int, limit: int) -> None:
    if got > limit:
        raise RowTooSmall(field, got, limit)


def _ids(column: bytes) -> Indices:
    return np.frombuffer(column, "<u4").astype(np.int64)


def _bias(sampling: Sampling) -> tuple[Indices, npt.NDArray[np.float32]]:
    ids = np.array([token_id for token_id, _ in sampling.logit_bias], np.int64)
    return ids, np.array([bias for _, bias in sampling.logit_bias], np.float32)


def _stop_ids(
    request: GenerateRequest, eos_token_ids: tuple[int, ...], vocab_size: int
) -> list[int]:
    eos = () if request.stop.ignore_eos else eos_token_ids
    # Some checkpoints name an EOS id outside the vocabulary, which is never drawn.
    return sorted({i for i in (*request.stop.stop_token_ids, *eos) if i < vocab_size})


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor at a multiple of 16 bytes, as Triton's kernels are compiled for."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()
