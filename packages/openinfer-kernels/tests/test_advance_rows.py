"""advance_rows: every back end against the definition, and the definition by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from openinfer_kernels import (
    AdvanceRowsSpec,
    RowTables,
    StepRows,
    StepTensors,
    plan_advance_rows,
)

NUM_SLOTS = 9
MAX_BLOCKS = 12
PADDING = NUM_SLOTS
PADDING_BLOCK = 500


def tables(block_size, rng):
    """Returns tables of sequences of all lengths, their blocks in random order."""
    block_table = rng.permutation((NUM_SLOTS + 1) * MAX_BLOCKS).reshape(-1, MAX_BLOCKS)
    block_table[PADDING] = PADDING_BLOCK
    seq_lens = rng.integers(0, (MAX_BLOCKS - 4) * block_size, NUM_SLOTS + 1)
    seq_lens[PADDING] = 0
    return RowTables(
        block_table=torch.tensor(block_table, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens),
        last_token=torch.tensor(rng.integers(1, 1000, NUM_SLOTS + 1)),
    )


def step_rows(rng, *, num_seqs, num_padded, num_tokens, block_size):
    """Returns random rows of a step; a decode step if `num_tokens` is None."""
    is_decode = num_tokens is None
    slots = np.full(num_seqs + num_padded, PADDING)
    slots[:num_seqs] = rng.permutation(NUM_SLOTS)[:num_seqs]
    counts = np.ones(len(slots), np.int64)
    if not is_decode:
        counts = rng.integers(1, 2 * block_size, len(slots))
        counts[num_seqs:] = 0
    begins = np.concatenate(([0], counts.cumsum()))
    token_ids = rng.integers(-1, 1000, begins[-1] if is_decode else num_tokens)
    token_ids[begins[num_seqs] :] = 0
    is_start = (slots != PADDING) & (rng.random(len(slots)) < 0.4)
    new = rng.integers(0, 4, len(slots)) * (slots != PADDING)
    return StepRows(
        slots=torch.tensor(slots),
        begins=torch.tensor(begins),
        draw_slots=torch.tensor(np.where(rng.random(len(slots)) < 0.5, slots, PADDING)),
        start_lens=torch.tensor(
            np.where(is_start, rng.integers(0, 3 * block_size, len(slots)), -1)
        ),
        new_columns=torch.tensor(rng.integers(0, MAX_BLOCKS - 4, len(slots))),
        new_begins=torch.tensor(np.concatenate(([0], new.cumsum()))),
        token_ids=torch.tensor(token_ids),
        new_blocks=torch.tensor(rng.integers(600, 900, new.sum() + 3)),
        is_decode=is_decode,
    )


def on(device, struct):
    parts = {field.name: getattr(struct, field.name) for field in dataclasses.fields(struct)}
    return type(struct)(**{k: v.to(device) if k != "is_decode" else v for k, v in parts.items()})


def run(backend, device, block_size, before, rows):
    """Returns the tables and the step's tensors after the step, on the CPU."""
    state = on(device, RowTables(**{f: getattr(before, f).clone() for f in before.__slots__}))
    num_tokens, num_seqs = len(rows.token_ids), len(rows.slots)
    # Larger tensors than the step needs, as in the runtime.
    max_blocks = before.block_table.shape[1]
    room = StepTensors.allocate(num_tokens + 5, num_seqs + 3, max_blocks, device)
    for name in room.__slots__:
        getattr(room, name).fill_(-7)
    advance = plan_advance_rows(AdvanceRowsSpec(block_size=block_size), device, backend)
    advance(state, on(device, rows), room.first(num_tokens, num_seqs))
    return on("cpu", state), on("cpu", room)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize(
    ("num_seqs", "num_padded", "num_tokens"),
    [(1, 0, None), (5, 3, None), (0, 2, None), (1, 0, 40), (4, 2, 150), (0, 3, 16)],
    ids=str,
)
def test_like_the_definition(backend, block_size, num_seqs, num_padded, num_tokens, triton_device):
    device = triton_device if backend == "triton" else "cpu"
    rng = np.random.default_rng(num_seqs * 7 + num_padded)
    for _ in range(4):
        before = tables(block_size, rng)
        rows = step_rows(
            rng,
            num_seqs=num_seqs,
            num_padded=num_padded,
            num_tokens=num_tokens,
            block_size=block_size,
        )
        expected_state, expected = run("reference", "cpu", block_size, before, rows)
        state, got = run(backend, device, block_size, before, rows)
        for name in state.__slots__:
            assert torch.equal(getattr(state, name), getattr(expected_state, name)), name
        for name in got.__slots__:
            if name != "block_table":
                assert torch.equal(getattr(got, name), getattr(expected, name)), name
        for seq, length in enumerate(expected.seq_lens[: len(rows.slots)].tolist()):
            used = -(-length // block_size)
            assert torch.equal(got.block_table[seq, :used], expected.block_table[seq, :used])
        assert (got.block_table[len(rows.slots) :] == -7).all()


@pytest.mark.parametrize("backend", ["reference", "torch", "triton"])
def test_by_hand(backend, triton_device):
    """One sequence continues in a new block, one starts after 2 cached tokens, one is padding."""
    device = triton_device if backend == "triton" else "cpu"
    before = RowTables(
        block_table=torch.tensor([[5, 0, 0], [9, 9, 9], [8, 8, 8]], dtype=torch.int32),
        seq_lens=torch.tensor([4, 3, 0]),
        last_token=torch.tensor([70, 71, 72]),
    )
    rows = StepRows(
        slots=torch.tensor([0, 1, 2]),
        begins=torch.tensor([0, 1, 4, 4]),
        draw_slots=torch.tensor([0, 2, 2]),
        start_lens=torch.tensor([-1, 2, -1]),
        new_columns=torch.tensor([1, 0, 0]),
        new_begins=torch.tensor([0, 1, 3, 3]),
        token_ids=torch.tensor([-1, 11, 12, 13, 0]),
        new_blocks=torch.tensor([6, 3, 4]),
        is_decode=False,
    )
    state, got = run(backend, device, 4, before, rows)
    assert state.block_table.tolist() == [[5, 6, 0], [3, 4, 9], [8, 8, 8]]
    assert state.seq_lens.tolist() == [5, 5, 0]
    assert got.token_ids[:5].tolist() == [70, 11, 12, 13, 0]
    assert got.positions[:5].tolist() == [4, 2, 3, 4, 0]
    assert got.slot_mapping[:5].tolist() == [24, 14, 15, 16, 32]
    assert got.cu_seqlens_q[:4].tolist() == [0, 1, 4, 4]
    assert got.seq_lens[:3].tolist() == [5, 5, 0]
    assert got.block_table[:2, :2].tolist() == [[5, 6], [3, 4]]
    assert got.logits_indices[:3].tolist() == [0, 3, 3]
    assert got.draw_slots[:3].tolist() == [0, 2, 2]
    assert got.draw_positions[:3].tolist() == [5, 5, 0]
