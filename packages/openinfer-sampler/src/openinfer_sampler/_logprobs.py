"""Logprobs of a step's tokens: computed on the device, packed as int32, unpacked on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from openinfer_contract import TokenLogprobs
from openinfer_kernels import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobLayout:
    """What the packed logprobs of some rows are, known to the host.

    A packed row is: rank, logprob, `max_top` ids, `max_top` logprobs, `max_by_id` logprobs; ids
    and ranks as they are, logprobs as the bits of a float32.

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
    def width(self) -> int:
        """Numbers of a packed row."""
        return 2 + 2 * self.max_top + self.max_by_id

    def unpack(self, packed: npt.NDArray[np.int32]) -> dict[int, TokenLogprobs]:
        """The logprobs by row, from `pack_logprobs`' numbers on the host."""
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


def pack_logprobs(
    scores: torch.Tensor, token_ids: torch.Tensor, layout: LogprobLayout
) -> torch.Tensor:
    """Log-softmax of `scores`, where it is asked for.

    Args:
        scores: [n, vocab_size], float32: one row for each of `layout.rows`.
        token_ids: [n], int64: the tokens drawn.
        layout: what is asked for.

    Returns:
        [n, layout.width], int32.
    """
    log_mass = scores.logsumexp(dim=1, keepdim=True)
    columns = _score(scores, log_mass, token_ids, layout.max_top)
    if layout.max_by_id:
        wanted = np.zeros((len(layout.rows), layout.max_by_id), np.int64)
        for row, ids_of_row in enumerate(layout.by_id):
            wanted[row, : len(ids_of_row)] = ids_of_row
        columns.append(_as_int32(scores.gather(1, upload(wanted, scores.device)) - log_mass))
    return torch.cat(columns, dim=1)


def score_tokens(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> torch.Tensor:
    """Logprobs of given tokens and of the most likely ones, packed for one copy to the host.

    Args:
        logits: [n, vocab_size], any float dtype.
        token_ids: [n], int64: the token of each row.
        num_top: most likely tokens wanted, at most vocab_size.

    Returns:
        [n, 2 + 2 * num_top], int32, for `unpack_scores`.
    """
    scores = logits.to(torch.float32)
    log_mass = scores.logsumexp(dim=1, keepdim=True)
    return torch.cat(_score(scores, log_mass, token_ids, num_top), dim=1)


def unpack_scores(packed: npt.NDArray[np.int32]) -> TokenLogprobs:
    """The logprobs of n consecutive tokens, from `score_tokens`' numbers on the host."""
    num_top = (packed.shape[1] - 2) // 2
    return TokenLogprobs(
        ranks=packed[:, 0].tobytes(),
        sampled=packed[:, 1].tobytes(),
        num_top=num_top,
        top_ids=packed[:, 2 : 2 + num_top].tobytes(),
        top=packed[:, 2 + num_top :].tobytes(),
    )


def _score(
    scores: torch.Tensor, log_mass: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> list[torch.Tensor]:
    """Columns: rank, logprob, top ids, top logprobs."""
    own = scores.gather(1, token_ids.unsqueeze(1))
    ranks = (scores > own).sum(dim=1, keepdim=True, dtype=torch.int32).add_(1)
    columns = [ranks, _as_int32(own - log_mass)]
    if num_top:
        ids = _most_likely(scores, num_top)
        columns += [ids.to(torch.int32), _as_int32(scores.gather(1, ids) - log_mass)]
    return columns


def _most_likely(scores: torch.Tensor, num_top: int) -> torch.Tensor:
    """Ids of the largest scores, ties by lowest id, so that the order depends on nothing else."""
    bits = scores.view(torch.int32)
    # Two's complement orders negative floats backwards: flip all but their sign.
    ordered = bits ^ (bits >> 31).bitwise_and_(0x7FFFFFFF)
    ids = torch.arange(scores.shape[1], device=scores.device)
    keys = (ordered.to(torch.int64) << 32).add_((1 << 32) - 1 - ids)
    best = keys.topk(num_top, dim=1).values
    return (1 << 32) - 1 - best.bitwise_and_((1 << 32) - 1)


def _as_int32(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float32).view(torch.int32)
