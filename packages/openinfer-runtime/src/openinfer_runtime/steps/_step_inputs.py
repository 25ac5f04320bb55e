"""The model's input of a step, as views of the tensors that `advance_rows` fills."""

from dataclasses import replace

import torch

from openinfer_kernels import StepTensors
from openinfer_nn import StepInputs


def step_inputs(tensors: StepTensors, max_seqlen_q: int, max_seqlen_k: int) -> StepInputs:
    """Returns a step's inputs.

    Args:
        tensors: Tensors of the step.
        max_seqlen_q: Upper bound on the tokens that one sequence forwards.
        max_seqlen_k: Upper bound on the length of a sequence after the step.
    """
    return StepInputs(
        token_ids=tensors.token_ids,
        positions=tensors.positions,
        cu_seqlens_q=tensors.cu_seqlens_q,
        seq_lens=tensors.seq_lens,
        block_table=tensors.block_table,
        slot_mapping=tensors.slot_mapping,
        logits_indices=tensors.logits_indices,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
    )


def blank_step(
    num_tokens: int,
    device: torch.device,
    *,
    block_size: int,
    max_seqlen_k: int | None = None,
    num_logits: int = 1,
) -> StepInputs:
    """Returns the inputs of a prompt that fills a step, for measuring and for dry runs.

    All token ids and positions are 0. The prompt's blocks are the first ones of the cache.

    Args:
        num_tokens: Length of the prompt.
        device: Device of the tensors; the meta device allocates nothing.
        block_size: Tokens per cache block.
        max_seqlen_k: Upper bound on the length after the step; None means `num_tokens`.
        num_logits: Number of rows of logits that the step computes.
    """
    max_seqlen_k = num_tokens if max_seqlen_k is None else max_seqlen_k
    tensors = StepTensors.allocate(num_tokens, 1, -(-max_seqlen_k // block_size), device)
    for tensor in (tensors.token_ids, tensors.positions, tensors.cu_seqlens_q):
        tensor.zero_()
    tensors.cu_seqlens_q[1:].fill_(num_tokens)
    tensors.seq_lens.fill_(num_tokens)
    num_blocks = tensors.block_table.shape[1]
    tensors.block_table.copy_(torch.arange(num_blocks, device=device).unsqueeze(0))
    tensors.slot_mapping.copy_(torch.arange(num_tokens, device=device))
    inputs = step_inputs(tensors, num_tokens, max_seqlen_k)
    inputs.logits_indices.zero_()
    if num_logits == 1:
        return inputs
    return replace(inputs, logits_indices=inputs.logits_indices.new_zeros(num_logits))
