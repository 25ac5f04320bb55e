"""Logprobs of drawn tokens, of the most likely and of given ones, packed for one copy to the host.

Only the rows that want logprobs are read; the others cost nothing.
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
    """Sizes of a call, fixed when an executor is built.

    Attributes:
        vocab_size: Columns of the scores.
        max_rows: Upper bound of the rows in a call.
    """

    vocab_size: int
    max_rows: int


class ScoreTokens(Protocol):
    """The `score_tokens` that `plan_score_tokens` returns. For one thread and one stream."""

    def __call__(
        self,
        scores: torch.Tensor,
        token_ids: torch.Tensor,
        rows: Indices,
        num_top: int,
        by_id: Indices,
        /,
    ) -> torch.Tensor:
        """Returns logprobs of some rows, without waiting for the device.

        Args:
            scores: [n, vocab_size], any float dtype, contiguous rows. Computation is in
                float32.
            token_ids: [n], int32, on the device: the token of each row.
            rows: [m], on the host: indices of the rows that want logprobs; at most `max_rows`.
            num_top: Number of most likely tokens for each row.
            by_id: [m, k], on the host: ids to score for each row.

        Returns:
            [m, 2 + 2 * num_top + k], int32: the drawn token's rank, from 1; its logprob; the most
            likely ids, of equal ones the lowest first; their logprobs; the logprobs of `by_id`.
            Logprobs are the bits of a float32.
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
    """Chooses a back end of `score_tokens` and binds it to a spec and a device.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    module = backend_module("score_tokens", spec, device, backend)
    return cast(ScoreTokens, module.plan(spec, device))
