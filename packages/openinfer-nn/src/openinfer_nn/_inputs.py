"""The inputs of a forward pass besides weights and cache."""

from dataclasses import dataclass

import torch

from openinfer_kernels import SharedPrefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """The rows of one step: the tokens of all sequences, one sequence after another.

    The tensors are views of buffers on the model's device, which the runtime owns and refills for
    every step. On CUDA the host reads none of them back: the two numbers are upper bounds that the
    host knows, so that a launch needs no value from the device.

    Attributes:
        token_ids: [num_tokens], int64.
        positions: [num_tokens], int64: position of each token in its sequence.
        cu_seqlens_q: [num_seqs + 1], int32: where each sequence's tokens begin, and their total.
        seq_lens: [num_seqs], int32: length of each sequence after this step; 0 for padding.
        block_table: [num_seqs, max_blocks], int32: the cache blocks of each sequence, in order.
        slot_mapping: [num_tokens], int64: block * block_size + offset, where a token's keys go.
        logits_indices: [num_logits], int64: the tokens whose logits are computed.
        max_seqlen_q: Upper bound of the tokens that a sequence has in this step.
        max_seqlen_k: Upper bound of seq_lens.
        shared: Which sequences of a decode step begin with the same blocks. None if this is not
            known, or if a sequence has more than one token.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    logits_indices: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    shared: SharedPrefixes | None = None
