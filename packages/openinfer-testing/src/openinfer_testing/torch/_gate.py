"""The accuracy gate: a path's logprobs against those of transformers, with bounds for rounding.

A path is a callable from token ids to logprobs. The same gate therefore judges a model in a loop,
an executor, and a server over HTTP. Bounds:

- float32: every logprob is within 0.01 nats of transformers in float32.
- bfloat16 and float16: mean and 99th percentile of the error against transformers in float32 are at
  most 1.5 times those of transformers' own run in that dtype.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from openinfer_testing.torch._reference import FloatArray, teacher_forced_logprobs

MAX_FLOAT32_ERROR = 0.01
MAX_ERROR_RATIO = 1.5

LogprobPath = Callable[[Sequence[Sequence[int]]], Sequence[FloatArray]]
"""Maps token ids per sequence to logprobs per sequence, [len(sequence) - 1, vocab_size], float32.
Row i is about token i + 1. NaN marks a token that the path does not report; no row is all NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The errors of a path against transformers in float32.

    Attributes:
        dtype: Dtype that the path computes in.
        num_compared: Number of logprobs compared.
        max_error: Largest absolute error, in nats.
        mean_error: Mean absolute error, in nats.
        p99_error: 99th percentile of the absolute error, in nats.
        mean_ratio: Mean error over that of transformers in the same dtype; 0.0 for float32.
        p99_ratio: 99th percentile over that of transformers in the same dtype; 0.0 for float32.
        worst: (sequence, row, token) of the largest error.
    """

    dtype: torch.dtype
    num_compared: int
    max_error: float
    mean_error: float
    p99_error: float
    mean_ratio: float
    p99_ratio: float
    worst: tuple[int, int, int]

    @property
    def is_accurate(self) -> bool:
        """Whether the path is within the bounds of its dtype."""
        if self.dtype is torch.float32:
            return self.max_error <= MAX_FLOAT32_ERROR
        return self.mean_ratio <= MAX_ERROR_RATIO and self.p99_ratio <= MAX_ERROR_RATIO

    def check(self) -> None:
        """Asserts that the path is accurate; the error shows the figures."""
        assert self.is_accurate, f"not what transformers computes: {self}"


def run_gate(
    folder: Path,
    path: LogprobPath,
    sequences: Sequence[Sequence[int]],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> GateReport:
    """Runs forced sequences through a path and compares the logprobs with transformers.

    Args:
        folder: The checkpoint that the path serves.
        path: The path to judge.
        sequences: Token ids, two or more per sequence.
        dtype: Dtype that the path computes in.
        device: Device that transformers computes on.

    Raises:
        ValueError: The path returned other shapes, or a row without a single logprob.
    """
    truth = teacher_forced_logprobs(folder, sequences, torch.float32, device)
    got = [np.asarray(rows, dtype=np.float32) for rows in path(sequences)]
    _check_shapes(got, truth)
    errors = _errors(got, truth)
    worst_sequence = int(np.argmax([np.nanmax(error) for error in errors]))
    worst = errors[worst_sequence]
    row, token = np.unravel_index(int(np.nanargmax(worst)), worst.shape)
    own_mean, own_p99 = 0.0, 0.0
    if dtype is not torch.float32:
        own = _errors(teacher_forced_logprobs(folder, sequences, dtype, device), truth)
        # Both sides are averaged over the entries that the path reports.
        reported = [np.where(np.isnan(e), np.nan, o) for e, o in zip(errors, own, strict=True)]
        own_mean, own_p99 = _mean_and_p99(reported)
    mean, p99 = _mean_and_p99(errors)
    return GateReport(
        dtype=dtype,
        num_compared=sum(int(np.count_nonzero(~np.isnan(error))) for error in errors),
        max_error=float(np.nanmax(worst)),
        mean_error=mean,
        p99_error=p99,
        mean_ratio=mean / own_mean if own_mean else 0.0,
        p99_ratio=p99 / own_p99 if own_p99 else 0.0,
        worst=(worst_sequence, int(row), int(token)),
    )


def next_token_only(rows: FloatArray, token_ids: Sequence[int]) -> FloatArray:
    """Returns the rows with NaN for every token but the next one, so that only that is judged.

    Args:
        rows: [num_rows, vocab_size]: row i is about `token_ids[i + 1]`.
        token_ids: More than `num_rows`.
    """
    came = np.asarray(token_ids[1 : len(rows) + 1])[:, np.newaxis]
    reported = np.full_like(rows, np.nan)
    np.put_along_axis(reported, came, np.take_along_axis(rows, came, axis=1), axis=1)
    return reported


def _errors(got: Sequence[FloatArray], truth: Sequence[FloatArray]) -> list[FloatArray]:
    return [np.abs(g - t) for g, t in zip(got, truth, strict=True)]


def _mean_and_p99(errors: Sequence[FloatArray]) -> tuple[float, float]:
    flat = np.concatenate([error[~np.isnan(error)] for error in errors])
    return float(flat.mean()), float(np.percentile(flat, 99))


def _check_shapes(got: Sequence[FloatArray], truth: Sequence[FloatArray]) -> None:
    shapes, wanted = [g.shape for g in got], [t.shape for t in truth]
    if shapes != wanted:
        raise ValueError(f"the path returned shapes {shapes}, wanted {wanted}")
    for index, rows in enumerate(got):
        blank = np.isnan(rows).all(axis=1)
        if blank.any():
            raise ValueError(f"sequence {index}, row {int(blank.argmax())}: no logprob reported")
        if np.isposinf(rows).any() or np.isneginf(rows).any():
            raise ValueError(f"sequence {index}: an infinite logprob")
