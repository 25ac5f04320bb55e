"""sample on a CPU: torch's operators, with numpy where it is several times as fast.

Noise is bounded. So where few scores come near the best one, noise is computed for those alone. The
choice between few and all depends on the row's own scores and key, and both ways add the same
noise.
"""

import numpy as np
import numpy.typing as npt
import torch

from openinfer_kernels.ops.sample import Failure, Sample, SampleSpec, SampleState
from openinfer_kernels.ops.sample._random import (
    GAMMA,
    LARGEST_NOISE,
    MULTIPLIERS,
    SHIFTS,
    counters,
    gumbel_noise,
)
from openinfer_kernels.ops.sample._torch import TorchSample

# Words that are mixed at a time: 256 KiB, which stay in the L2 cache with their copy.
_BLOCK = 1 << 15
# Vocabularies up to this size are computed whole, for all rows at once, which is cheaper.
_SMALL = 1 << 13
# Noise is computed for near scores alone if they are at most this share of all scores.
_FEW = 0.25

_Words = npt.NDArray[np.uint64]
_MULTIPLIERS = tuple(np.uint64(multiplier) for multiplier in MULTIPLIERS)
_SHIFTS = tuple(np.uint64(shift) for shift in SHIFTS)


def supports(spec: SampleSpec, device: torch.device) -> str | None:
    """Returns None on a CPU, else the reason."""
    return None if device.type == "cpu" else f"needs a CPU, this is {device.type}"


def plan(spec: SampleSpec, state: SampleState, device: torch.device | str) -> Sample:
    """Binds the operators to a spec and its tables."""
    return _CpuSample(spec, state, torch.device(device))


class _CpuSample(TorchSample):
    def __init__(self, spec: SampleSpec, state: SampleState, device: torch.device) -> None:
        super().__init__(spec, state, device)
        self._words = counters(spec.vocab_size, device).numpy().view(np.uint64)

    def _argmax(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if scores.shape[1] <= _SMALL:
            return super()._argmax(scores)
        # Like torch's, it returns the first of equal scores and prefers NaN, but it is vectorised.
        token_ids = torch.from_numpy(scores.numpy().argmax(axis=1))
        return token_ids, scores.gather(1, token_ids.unsqueeze(1)).squeeze(1)

    def _failures(self, best: torch.Tensor) -> torch.Tensor:
        scores = best.numpy()
        failures = (~np.isfinite(scores)).astype(np.int32)
        failures[scores == -np.inf] = Failure.NOTHING_LEFT
        return torch.from_numpy(failures)

    def _perturbed_argmax(
        self, scores: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_rows, vocab_size = scores.shape
        keys = _row_keys(seeds.numpy().view(np.uint64), positions.numpy().view(np.uint64))
        if vocab_size <= _SMALL:
            words = _mixed(self._words + keys[:, None])
            bits = torch.from_numpy(words.view(np.int32) & 0x7FFFFFFF)[:, :vocab_size]
            return self._argmax(gumbel_noise(bits).add_(scores))
        token_ids = torch.empty(num_rows, dtype=torch.int64)
        best = torch.empty(num_rows, dtype=torch.float32)
        for row, key in enumerate(keys):
            token_ids[row], best[row] = self._draw_row(scores[row], key)
        return token_ids, best

    def _draw_row(self, scores: torch.Tensor, key: np.uint64) -> tuple[int, float]:
        values = scores.numpy()
        top = np.array([values.argmax()])
        bound = float(_perturbed(scores, top, self._bits(top, key))[0]) - LARGEST_NOISE
        # If the bound is NaN or infinite, no score is near it, and the top alone shows the failure.
        close = values >= bound
        if np.count_nonzero(close) <= _FEW * len(values):
            ids = np.union1d(np.flatnonzero(close), top)
            bits = self._bits(ids, key)
        else:
            ids, bits = np.arange(len(values)), self._all_bits(key)
        perturbed = _perturbed(scores, ids, bits).numpy()
        winner = int(perturbed.argmax())
        return int(ids[winner]), float(perturbed[winner])

    def _bits(self, ids: npt.NDArray[np.int64], key: np.uint64) -> torch.Tensor:
        words = _mixed(self._words[ids >> 1] + key)
        halves = words >> ((ids & 1).astype(np.uint64) << np.uint64(5))
        return torch.from_numpy((halves & np.uint64(0x7FFFFFFF)).astype(np.int32))

    def _all_bits(self, key: np.uint64) -> torch.Tensor:
        words = np.empty_like(self._words)
        for begin in range(0, len(words), _BLOCK):
            block = words[begin : begin + _BLOCK]
            np.add(self._words[begin : begin + _BLOCK], key, out=block)
            _mixed(block)
        return torch.from_numpy(words.view(np.int32)).bitwise_and_(0x7FFFFFFF)


def _perturbed(
    scores: torch.Tensor, ids: npt.NDArray[np.int64], bits: torch.Tensor
) -> torch.Tensor:
    noise = gumbel_noise(bits[: len(ids)])
    return noise.add_(scores if len(ids) == len(scores) else scores[torch.from_numpy(ids)])


def _row_keys(seeds: _Words, positions: _Words) -> _Words:
    """Computes `_random.row_keys` in numpy."""
    keys = _mixed(seeds + np.uint64(GAMMA))
    keys += positions
    return _mixed(keys)


def _mixed(words: _Words) -> _Words:
    """Applies SplitMix64's finaliser in place; see `_random`."""
    shifted = np.empty_like(words)
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, None), strict=True):
        np.right_shift(words, shift, out=shifted)
        np.bitwise_xor(words, shifted, out=words)
        if multiplier is not None:
            np.multiply(words, multiplier, out=words)
    return words
