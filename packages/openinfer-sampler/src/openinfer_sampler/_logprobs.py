"""Logprobs of tokens: what is asked of `openinfer_kernels.ScoreTokens`, and what it has packed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openinfer_contract import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobLayout:
    """What the packed logprobs of some rows are, known to the host.

    See `openinfer_kernels.ScoreTokens`, with `max_top` likeliest tokens and the ids of `wanted`.

    Attributes:
        rows: the rows of the step that have logprobs.
        num_top: by entry of `rows`, top tokens asked for.
        by_id: by entry of `rows`, token ids asked for, int64.
    """

    rows: npt.NDArray[np.int64]
    num_top: Sequence[int]
    by_id: Sequence[npt.NDArray[np.int64]]

    @property
    def max_top(self) -> int:
        """Top tokens of the row that asked for most."""
        return max(self.num_top, default=0)

    @property
    def max_by_id(self) -> int:
        """Token ids of the row that asked for most."""
        return max(map(len, self.by_id), default=0)

    @property
    def wanted(self) -> npt.NDArray[np.int64]:
        """[rows, max_by_id]: token ids by entry, filled up with some id."""
        wanted = np.zeros((len(self.rows), self.max_by_id), np.int64)
        for entry, ids in enumerate(self.by_id):
            wanted[entry, : len(ids)] = ids
        return wanted

    @property
    def width(self) -> int:
        """Numbers of a packed row."""
        return 2 + 2 * self.max_top + self.max_by_id

    def unpack(self, packed: npt.NDArray[np.int32]) -> dict[int, TokenLogprobs]:
        """The logprobs by row, from what was packed, on the host."""
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
    """The logprobs of n consecutive tokens, from `Sampler.score_tokens`' numbers on the host."""
    num_top = (packed.shape[1] - 2) // 2
    return TokenLogprobs(
        ranks=packed[:, 0].tobytes(),
        sampled=packed[:, 1].tobytes(),
        num_top=num_top,
        top_ids=packed[:, 2 : 2 + num_top].tobytes(),
        top=packed[:, 2 + num_top :].tobytes(),
    )
