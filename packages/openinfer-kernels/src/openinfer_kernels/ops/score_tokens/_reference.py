"""The definition of score_tokens: row by row, in float64."""

import numpy as np
import torch

from openinfer_kernels.ops.score_tokens import Indices, ScoreTokens, ScoreTokensSpec


def plan(spec: ScoreTokensSpec, device: torch.device | str) -> ScoreTokens:
    """Binds the definition."""
    del spec, device

    def score_tokens(
        scores: torch.Tensor, token_ids: torch.Tensor, rows: Indices, num_top: int, by_id: Indices
    ) -> torch.Tensor:
        out = np.zeros((len(rows), 2 + 2 * num_top + by_id.shape[1]), np.int32)
        for entry, row in enumerate(rows.tolist()):
            raw = scores[row].double().cpu().numpy()
            token = int(token_ids[row])
            finite = raw[raw > -np.inf]
            logprobs = raw - finite.max() - np.log(np.exp(finite - finite.max()).sum())
            top = np.lexsort((np.arange(len(raw)), -raw))[:num_top]
            floats = logprobs.astype(np.float32)
            out[entry, 0] = 1 + (raw > raw[token]).sum()
            out[entry, 1] = floats[token].view(np.int32)
            out[entry, 2 : 2 + num_top] = top
            out[entry, 2 + num_top : 2 + 2 * num_top] = floats[top].view(np.int32)
            out[entry, 2 + 2 * num_top :] = floats[by_id[entry]].view(np.int32)
        return torch.from_numpy(out).to(scores.device)

    return score_tokens
