"""Logprobs of tokens: input of `openinfer_kernels.ScoreTokens`, and its packed output."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openinfer_contract import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobLayout:
    """Layout of the packed logprobs of some rows.

    `openinfer_kernels.ScoreTokens` packs them, for the `max_top` most likely tokens and the ids of
    `wanted`.

    Attributes:
        rows: [n]: rows of the step with logprobs.
        num_top: [n]: number of most likely tokens that each row wants.
        by_id: [n]: token ids that each row wants, int64.
    """

    rows: npt.NDArray[np.int64]
    num_top: Sequence[int]
    by_id: Sequence[npt.NDArray[np.int64]]

    @property
    def max_top(self) -> int:
        """Largest `num_top`."""
        return max(self.num_top, default=0)

    @property
    def max_by_id(self) -> int:
        """Largest number of token ids that a row wants."""
        return max(map(len, self.by_id), default=0)

    @property
    def wanted(self) -> npt.NDArray[np.int64]:
        """[n, max_by_id]: token ids of each row, then id 0."""
        wanted = np.zeros((len(self.rows), self.max_by_id), np.int64)
        for entry, ids in enumerate(self.by_id):
            wanted[entry, : len(ids)] = ids
        return wanted

    @property
    def width(self) -> int:
        """Number of int32 in a packed row."""
        return 2 + 2 * self.max_top + self.max_by_id

    def unpack(self, packed: npt.NDArray[np.int32]) -> dict[int, TokenLogprobs]:
        """Returns the logprobs of each row, from the packed numbers on the host."""
        table = packed.reshape(len(self.rows), self.width)
        top_ids, top, by_id = 2, 2 + self.max_top, 2 + 2 * self.max_top
        return {
            int(row): TokenLogprobs(
                ranks=numbers[0:1].tobytes(),
                sampled=numbers[1:2].tobytes(),
                num_top=num_top,
                top_ids=numbers[top_ids : top_ids + num_top].tobytes(),
                top=numbers[top : top + num_top].tobytes(),
                by_id=numbers[by_id : by_id + len(ids)].tobytes(),
            )
            for row, num_top, ids, numbers in zip(
                self.rows, self.num_top, self.by_id, table, strict=True
            )
        }


def unpack_scores(packed: npt.NDArray[np.int32]) -> TokenLogprobs:
    """Returns logprobs of n consecutive tokens, from the result of `Sampler.score_tokens`."""
    num_top = (packed.shape[1] - 2) // 2
    return TokenLogprobs(
        ranks=packed[:, 0].tobytes(),
        sampled=packed[:, 1].tobytes(),
        num_top=num_top,
        top_ids=packed[:, 2 : 2 + num_top].tobytes(),
        top=packed[:, 2 + num_top :].tobytes(),
    )
