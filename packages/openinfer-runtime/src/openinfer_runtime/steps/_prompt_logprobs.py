"""Logprobs of prompt tokens, computed for each chunk as it is forwarded.

Logits at position p predict the token at p + 1. A chunk [a, b) therefore scores the prompt tokens
in [max(a + 1, start), min(b + 1, num_prompt_tokens)).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from openinfer_contract import GenerateRequest, TokenLogprobs
from openinfer_runtime._model import TorchModel
from openinfer_runtime.steps._step_buffers import HostRows
from openinfer_sampler import MIN_SCORED_ROWS, Sampler, unpack_scores, upload


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Logprobs of prompt tokens of one row of the plan, on the device."""

    row: int
    packed: torch.Tensor
    """[num_tokens, columns], int32."""

    def unpack(self, packed: npt.NDArray[np.int32]) -> TokenLogprobs:
        """Returns the logprobs, from the numbers of `packed` on the host."""
        return unpack_scores(packed.reshape(self.packed.shape))


def score_prompts(
    model: TorchModel,
    sampler: Sampler,
    hidden: torch.Tensor,
    rows: HostRows,
    requests: Mapping[int, GenerateRequest],
) -> list[PromptScores]:
    """Computes logprobs of the prompt tokens that this step's chunks predict.

    Args:
        model: Computes logits.
        sampler: Computes logprobs.
        hidden: [num_tokens, hidden_size]: result of the forward pass.
        rows: Rows of the step.
        requests: Requests that want prompt logprobs, by row of the plan.
    """
    scores = []
    for row, request in requests.items():
        options = request.prompt_logprobs
        assert options is not None
        position = int(rows.chunk_starts[row])
        begin, end = int(rows.token_starts[row]), int(rows.token_starts[row + 1])
        first = max(position + 1, options.start)
        last = min(position + 1 + end - begin, request.num_prompt_tokens)
        if first >= last:
            continue
        prompt = np.frombuffer(request.prompt_token_ids, "<u4")
        targets = upload(prompt[first:last].astype(np.int32), hidden.device)
        begin += first - position - 1
        about = hidden[begin : begin + last - first]
        # Logits of a whole chunk would take more memory than the plan has for the largest step.
        parts = [
            sampler.score_tokens(
                model.logits(about[at : at + MIN_SCORED_ROWS]),
                targets[at : at + MIN_SCORED_ROWS],
                options.num_top,
            )
            for at in range(0, last - first, MIN_SCORED_ROWS)
        ]
        scores.append(PromptScores(row, torch.cat(parts)))
    return scores
