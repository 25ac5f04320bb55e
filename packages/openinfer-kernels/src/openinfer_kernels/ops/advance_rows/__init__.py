"""From the tables of all rows, and what the host says of one step, to what a forward pass reads.

Lengths and last tokens are known on the device before the host knows them. So positions, cache
slots and lengths are computed there, by one launch, which also lengthens the rows by the step's
tokens and enters new sequences and blocks.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from openinfer_kernels.dispatch._choice import backend_module


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceRowsSpec:
    """What is fixed about the tables.

    Attributes:
        block_size: Tokens of a cache block.
    """

    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTables:
    """What the device knows of every sequence, by slot.

    The last slot is padding: it has no tokens, keeps none, and owns the block that padding writes.

    Attributes:
        block_table: [num_slots, max_blocks], int32: cache blocks, in order.
        seq_lens: [num_slots], int64: tokens forwarded.
        last_token: [num_slots], int64: the token drawn last; only read here.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    last_token: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """What the host knows of a step: its sequences, one after another. All int64, on the device.

    Attributes:
        slots: [num_seqs]: none twice, but padding.
        begins: [num_seqs + 1]: where each sequence's tokens begin. Tokens from the last one on are
            padding.
        draw_slots: [num_seqs]: the slot again where a token is drawn, the padding slot elsewhere.
        start_lens: [num_seqs]: tokens cached of a sequence that starts, -1 of one that goes on.
        new_columns: [num_seqs]: where in the row of the block table new blocks go.
        new_begins: [num_seqs + 1]: where in `new_blocks` each sequence's begin.
        token_ids: [num_tokens]: -1 for the token drawn last.
        new_blocks: [any]: as many as `new_begins` ends with, and more that are not read.
        is_decode: Whether every sequence has one token, padding too: `begins` counts up.
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
    """What a forward pass and a draw read, in memory that is the caller's.

    Attributes:
        token_ids: [num_tokens], int64.
        positions: [num_tokens], int64: place in the sequence; 0 for padding.
        slot_mapping: [num_tokens], int64: block * block_size + offset.
        cu_seqlens_q: [num_seqs + 1], int32: `begins`.
        seq_lens: [num_seqs], int32: after the step; 0 for padding.
        block_table: [num_seqs, max_blocks], int32: as far as `seq_lens` says.
        logits_indices: [num_seqs], int64: each sequence's last token, some token where it has none.
        draw_slots: [num_seqs], int64.
        draw_positions: [num_seqs], int64: `seq_lens`, sequence index of the token to draw.
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
        """Tensors for up to so many tokens and sequences, filled with nothing."""

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
        """Views of the first tokens and sequences."""
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
    """A bound `advance_rows`."""

    def __call__(self, tables: RowTables, rows: StepRows, out: StepTensors, /) -> None:
        """Enters what is new, fills `out`, and lengthens the rows by the step's tokens.

        Reads nothing back to the host and can be recorded.

        Args:
            tables: Of all rows; `block_table` and `seq_lens` are changed.
            rows: Of the step.
            out: Written.
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
    """Chooses and binds `advance_rows`.

    Raises:
        BackendUnavailable: The backend cannot run this spec on this device.
    """
    module = backend_module("advance_rows", spec, device, backend)
    return cast(AdvanceRows, module.plan(spec, device))
