"""Logprobs of drawn tokens, of the likeliest and of given ones, packed for one copy to the host.

A row that nobody asks about is not read: a step pays for the rows that want scores, and next to
nothing beside them.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from openinfer_kernels.dispatch._choice import backend_module

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTokensSpec:
    """What is fixed about scoring when an executor is built.

    Attributes:
        vocab_size: Columns of the scores.
        max_rows: Rows of a call at most.
    """

    vocab_size: int
    max_rows: int


class ScoreTokens(Protocol):
    """A bound `score_tokens`. One thread, one stream."""

    def __call__(
        self,
        scores: torch.Tensor,
        token_ids: torch.Tensor,
        rows: Indices,
        num_top: int,
        by_id: Indices,
        /,
    ) -> torch.Tensor:
        """The log-softmax of some rows, where it is asked for. Enqueues and returns.

        Args:
            scores: [n, vocab_size], any float dtype, contiguous rows; computed with in float32.
            token_ids: [n], int32, on the device: the token of each row.
            rows: [m], on the host: which rows are asked about, m at most `max_rows`.
            num_top: Likeliest tokens wanted of each.
            by_id: [m, any], on the host: ids wanted of each.

        Returns:
            [m, 2 + 2 * num_top + k], int32: the token's rank, from 1; its logprob; the likeliest
            ids, the lowest of equals first; their logprobs; those of `by_id`. Logprobs are the
            bits of a float32.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("torch", "reference"),
    "cuda": ("triton", "torch", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {"": ScoreTokensSpec(vocab_size=151_936, max_rows=256)}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_score_tokens(
    spec: ScoreTokensSpec, device: torch.device | str, backend: str = "auto"
) -> ScoreTokens:
    """Chooses and binds `score_tokens`.

    Raises:
        BackendUnavailable: The backend cannot run this spec on this device.
    """
    module = backend_module("score_tokens", spec, device, backend)
    return cast(ScoreTokens, module.plan(spec, device))
