"""score_tokens with torch's operators, for any device."""

import numpy as np
import torch

from openinfer_kernels.memory._upload import upload
from openinfer_kernels.ops.score_tokens import Indices, ScoreTokens, ScoreTokensSpec


def plan(spec: ScoreTokensSpec, device: torch.device | str) -> ScoreTokens:
    """Binds the operators."""
    return score_tokens


def score_tokens(
    scores: torch.Tensor, token_ids: torch.Tensor, rows: Indices, num_top: int, by_id: Indices
) -> torch.Tensor:
    """Returns logprobs of some rows; see `ScoreTokens`."""
    if not np.array_equal(rows, np.arange(len(scores))):
        at = upload(rows, scores.device)
        scores, token_ids = scores.index_select(0, at), token_ids.index_select(0, at)
    scores = scores.to(torch.float32)
    log_mass = scores.logsumexp(dim=1, keepdim=True)
    own = scores.gather(1, token_ids.to(torch.int64).unsqueeze(1))
    ranks = (scores > own).sum(dim=1, keepdim=True, dtype=torch.int32).add_(1)
    columns = [ranks, _as_int32(own - log_mass)]
    if num_top:
        ids = _most_likely(scores, num_top)
        columns += [ids.to(torch.int32), _as_int32(scores.gather(1, ids) - log_mass)]
    if by_id.shape[1]:
        wanted = upload(by_id, scores.device)
        columns.append(_as_int32(scores.gather(1, wanted) - log_mass))
    return torch.cat(columns, dim=1)


def _most_likely(scores: torch.Tensor, num_top: int) -> torch.Tensor:
    """Returns the ids of the largest scores, of equal ones the lowest first."""
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    # As integers, negative floats are in reverse order; flipping all bits but the sign reverses it.
    ordered = bits ^ (bits >> 31).bitwise_and_(0x7FFFFFFF)
    ids = torch.arange(scores.shape[1], device=scores.device)
    keys = (ordered.to(torch.int64) << 32).add_((1 << 32) - 1 - ids)
    best = keys.topk(num_top, dim=1).values
    return (1 << 32) - 1 - best.bitwise_and_((1 << 32) - 1)


def _as_int32(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float32).view(torch.int32)
