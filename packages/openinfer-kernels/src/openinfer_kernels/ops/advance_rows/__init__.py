"""Positions, slot mapping, lengths and block table of a step, computed on the device.

The device knows the lengths and last tokens of rows before the host does. So one launch computes
what a forward pass and a draw read, from the per-slot tables and the host's changes. It also writes
new sequences and new blocks into the tables, and lengthens the rows by the step's tokens.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch._choice import backend_module


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceRowsSpec:
    """Sizes that are fixed when an executor is built.

    Attributes:
        block_size: Tokens in a cache block.
    """

    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTables:
    """The state of every sequence on the device, by slot.

    The last slot is for padding. It always has length 0, and owns the block that padding writes to.

    Attributes:
        block_table: [num_slots, max_blocks], int32: blocks of each sequence, in order.
        seq_lens: [num_slots], int64: number of tokens that were forwarded.
        last_token: [num_slots], int64: the last drawn token; only read here.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    last_token: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The host's part of a step: its sequences, in order. All int64, on the device.

    Attributes:
        slots: [num_seqs]: the slot of each sequence. Only the padding slot may occur twice.
        begins: [num_seqs + 1]: index of each sequence's first token. Tokens from the last entry on
            are padding.
        draw_slots: [num_seqs]: the slot if a token is drawn for the sequence, else the padding
            slot.
        start_lens: [num_seqs]: cached tokens of a sequence that starts, -1 for one that continues.
        new_columns: [num_seqs]: column of the block table for the first new block.
        new_begins: [num_seqs + 1]: index in `new_blocks` of each sequence's first block.
        token_ids: [num_tokens]: -1 for the last drawn token.
        new_blocks: [at least new_begins[-1]]: new blocks; further entries are ignored.
        is_decode: Whether every sequence has exactly one token, padding included.
    """

    slots: torch.Tensor
    begins: torch.Tensor
    draw_slots: torch.Tensor
    start_lens: torch.Tensor
    new_columns: torch.Tensor
    new_begins: torch.Tensor
    token_ids: torch.Tensor
    new_blocks: torch.Tensor
    is_decode: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTensors:
    """The inputs of a forward pass and of a draw, in memory of the caller.

    Attributes:
        token_ids: [num_tokens], int64.
        positions: [num_tokens], int64: position in the sequence; 0 for padding.
        slot_mapping: [num_tokens], int64: block * block_size + offset.
        cu_seqlens_q: [num_seqs + 1], int32: `begins`.
        seq_lens: [num_seqs], int32: lengths after the step; 0 for padding.
        block_table: [num_seqs, max_blocks], int32: blocks of each sequence; columns after its last
            block are not written.
        logits_indices: [num_seqs], int64: index of each sequence's last token; of any token if it
            has none.
        draw_slots: [num_seqs], int64: as in `StepRows`.
        draw_positions: [num_seqs], int64: sequence index of the token to draw, equal to `seq_lens`.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    logits_indices: torch.Tensor
    draw_slots: torch.Tensor
    draw_positions: torch.Tensor

    @classmethod
    def allocate(
        cls, num_tokens: int, num_seqs: int, max_blocks: int, device: torch.device | str
    ) -> "StepTensors":
        """Returns uninitialised tensors for up to `num_tokens` tokens and `num_seqs` sequences."""

        def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            token_ids=empty(num_tokens),
            positions=empty(num_tokens),
            slot_mapping=empty(num_tokens),
            cu_seqlens_q=empty(num_seqs + 1, dtype=torch.int32),
            seq_lens=empty(num_seqs, dtype=torch.int32),
            block_table=empty(num_seqs, max_blocks, dtype=torch.int32),
            logits_indices=empty(num_seqs),
            draw_slots=empty(num_seqs),
            draw_positions=empty(num_seqs),
        )

    def first(self, num_tokens: int, num_seqs: int) -> "StepTensors":
        """Returns views of the first tokens and sequences."""
        return StepTensors(
            token_ids=self.token_ids[:num_tokens],
            positions=self.positions[:num_tokens],
            slot_mapping=self.slot_mapping[:num_tokens],
            cu_seqlens_q=self.cu_seqlens_q[: num_seqs + 1],
            seq_lens=self.seq_lens[:num_seqs],
            block_table=self.block_table[:num_seqs],
            logits_indices=self.logits_indices[:num_seqs],
            draw_slots=self.draw_slots[:num_seqs],
            draw_positions=self.draw_positions[:num_seqs],
        )


class AdvanceRows(Protocol):
    """The `advance_rows` that `plan_advance_rows` returns."""

    def __call__(self, tables: RowTables, rows: StepRows, out: StepTensors, /) -> None:
        """Updates the tables for a step and writes the step's tensors.

        Reads nothing back to the host and can be captured.

        Args:
            tables: State of all rows; `block_table` and `seq_lens` are updated.
            rows: The host's part of the step.
            out: Tensors to write.
        """
        ...


ORDER: dict[str, tuple[str, ...]] = {
    "cpu": ("torch", "reference"),
    "cuda": ("triton", "torch", "reference"),
}
"""Back ends by device type, in the order in which "auto" tries them."""

EXAMPLES = {"": AdvanceRowsSpec(block_size=16)}
"""Specs that the report of back ends describes: those of Qwen3-4B in bf16."""


def plan_advance_rows(
    spec: AdvanceRowsSpec, device: torch.device | str, backend: str = "auto"
) -> AdvanceRows:
    """Chooses a back end of `advance_rows` and binds it to a spec and a device.

    Raises:
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    module = backend_module("advance_rows", spec, device, backend)
    return cast(AdvanceRows, module.plan(spec, device))
