"""Rows on the device against a plain re-computation, over random plans."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from openinfer_contract import GenerateRequest, StopRules, pack_ids
from openinfer_runtime.steps._row_table import RowTable
from openinfer_runtime.steps._step_buffers import StepBuffers
from openinfer_runtime.steps._step_inputs import blank_step
from openinfer_runtime.steps._step_shapes import StepShape, StepShapes
from openinfer_scheduler import LOOKAHEAD, PlannedRow, RowStart, StepPlan

BLOCK_SIZE = 4
MAX_MODEL_LEN = 37
NUM_BLOCKS = 400
PADDING_SLOT = 5
SHAPES = StepShapes(max_num_seqs=PADDING_SLOT, max_num_tokens=100)


class Sequence:
    """A sequence as the test knows it: all its tokens, its blocks, and the tokens forwarded."""

    def __init__(self, rng, free):
        self.tokens = rng.integers(0, 1000, rng.integers(1, 20)).tolist()
        self.num_cached = int(rng.integers(0, len(self.tokens)))
        self.free = free
        self.blocks = [free.pop() for _ in range(-(-self.num_cached // BLOCK_SIZE))]
        self.start_blocks = list(self.blocks)
        self.has_drawn = False

    @property
    def num_known(self):
        return len(self.tokens) - self.num_cached

    @property
    def is_decode(self):
        """The last token is the one the device drew: only a forward of it alone may omit it."""
        return self.num_known == 1 and self.num_cached > 0 and self.has_drawn

    def grow(self, num_tokens):
        new = []
        while (len(self.blocks) + len(new)) * BLOCK_SIZE < self.num_cached + num_tokens:
            new.append(self.free.pop())
        self.blocks += new
        return new


def int32(values):
    return np.array(values, np.int32)


def row_start(slot, sequence):
    request = GenerateRequest(
        request_id="r", prompt_token_ids=pack_ids(sequence.tokens), stop=StopRules(max_tokens=9)
    )
    return RowStart(
        slot=slot,
        request=request,
        token_ids=np.array(sequence.tokens, np.uint32),
        num_output_tokens=0,
        num_cached_tokens=sequence.num_cached,
        block_ids=(int32(sequence.start_blocks),),
        seed=0,
    )


def row_table(max_model_len=MAX_MODEL_LEN):
    """A row table for every captured shape."""
    table = RowTable(
        num_slots=PADDING_SLOT,
        max_model_len=max_model_len,
        block_size=BLOCK_SIZE,
        padding_block=NUM_BLOCKS,
        last_token=torch.zeros(PADDING_SLOT + 1, dtype=torch.int64),
        device=torch.device("cpu"),
    )
    table.reserve(SHAPES.max_num_tokens, SHAPES.max_num_seqs)
    return table


@pytest.mark.parametrize("is_captured", [False, True], ids=["exact", "padded"])
@pytest.mark.parametrize("seed", range(6))
def test_random_plans(seed, is_captured):
    rng = np.random.default_rng(seed)
    table, buffers_by_shape = row_table(), {}
    free = rng.permutation(NUM_BLOCKS).tolist()
    live: dict[int, Sequence] = {}
    for step_id in range(40):
        ends = [s for s in list(live) if len(live[s].tokens) > 30 or rng.random() < 0.1]
        for slot in ends:
            del live[slot]
        starts = []
        for slot in range(5):
            if slot not in live and rng.random() < 0.5:
                live[slot] = Sequence(rng, free)
                starts.append(row_start(slot, live[slot]))
        rows, truth = [], []
        # Decode rows come first.
        slots = rng.permutation(list(live)).tolist()
        for slot in sorted(slots, key=lambda slot: not live[slot].is_decode):
            sequence = live[slot]
            is_unknown = sequence.is_decode
            count = 1 if is_unknown else int(rng.integers(1, sequence.num_known + 1))
            begin, end = sequence.num_cached, sequence.num_cached + count
            rows.append(
                PlannedRow(
                    slot=slot,
                    num_tokens=count,
                    token_ids=None
                    if is_unknown
                    else np.array(sequence.tokens[begin:end], np.uint32),
                    new_block_ids=(int32(sequence.grow(count)),),
                    is_sampled=end == len(sequence.tokens),
                )
            )
            truth.append((sequence, begin, end))
            sequence.num_cached = end
        if not rows:
            continue
        plan = StepPlan(step_id=step_id, ends=tuple(ends), starts=tuple(starts), rows=tuple(rows))
        if is_captured:
            check_captured(table, buffers_by_shape, plan, truth)
        else:
            check(table, plan, truth)
        for row, (sequence, _, _) in zip(rows, truth, strict=True):
            if row.is_sampled:
                sequence.has_drawn = True
                sequence.tokens.append(draw_of(step_id, row.slot))


def draw_of(step_id, slot):
    return 1000 + step_id * 10 + slot


def expected(plan, truth):
    """Ids, positions, cache slots and ends of a step's tokens; (index, slot, position) of draws."""
    token_ids, positions, slots, ends, sampled = [], [], [], [0], []
    for row, (sequence, begin, end) in zip(plan.rows, truth, strict=True):
        token_ids += sequence.tokens[begin:end]
        positions += range(begin, end)
        slots += [
            sequence.blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
            for p in range(begin, end)
        ]
        ends.append(len(token_ids))
        if row.is_sampled:
            sampled.append((len(token_ids) - 1, row.slot, end))
    return token_ids, positions, slots, ends, sampled


def draw(table, plan, draw_slots, rows, slots):
    drawn = torch.full((len(draw_slots),), -77, dtype=torch.int64)
    drawn[rows] = torch.tensor([draw_of(plan.step_id, slot) for slot in slots], dtype=torch.int64)
    table._tables.last_token.index_copy_(0, draw_slots, drawn)


def check(table, plan, truth):
    host, buffers = table.enter_exact(plan)
    table.advance(buffers)
    inputs, tensors = buffers.inputs, buffers.tensors
    token_ids, positions, slots, ends, sampled = expected(plan, truth)
    assert inputs.token_ids.tolist() == token_ids
    assert inputs.positions.tolist() == positions
    assert inputs.slot_mapping.tolist() == slots
    assert inputs.cu_seqlens_q.tolist() == ends
    assert inputs.seq_lens.tolist() == [end for _, _, end in truth]
    for index, (sequence, _, end) in enumerate(truth):
        used = -(-end // BLOCK_SIZE)
        assert inputs.block_table[index, :used].tolist() == sequence.blocks[:used]
    rows = buffers.sampled_rows[: len(sampled)]
    assert rows.tolist() == host.sampled_rows.tolist()
    assert inputs.logits_indices[rows].tolist() == [at for at, _, _ in sampled]
    slots = [slot for _, slot, _ in sampled]
    assert host.sampled_slots.tolist() == tensors.draw_slots[rows].tolist() == slots
    assert tensors.draw_positions[rows].tolist() == [end for _, _, end in sampled]
    assert inputs.max_seqlen_q == max(end - begin for _, begin, end in truth)
    assert inputs.max_seqlen_k == max(end for _, _, end in truth)
    assert inputs.token_ids.dtype == inputs.slot_mapping.dtype == torch.int64
    assert inputs.block_table.dtype == inputs.seq_lens.dtype == torch.int32
    draw(table, plan, tensors.draw_slots, rows, slots)


def check_captured(table, buffers_by_shape, plan, truth):
    shape = SHAPES.of(plan)
    if shape not in buffers_by_shape:
        buffers_by_shape[shape] = table.captured_step(shape)
    host = table.enter(plan, buffers_by_shape[shape])
    table.advance(buffers_by_shape[shape])
    inputs, step = buffers_by_shape[shape].inputs, buffers_by_shape[shape].tensors
    token_ids, positions, slots, ends, sampled = expected(plan, truth)
    num_tokens, num_seqs = len(token_ids), len(truth)
    token_padding = [0] * (shape.num_tokens - num_tokens)
    seq_padding = [0] * (shape.num_seqs - num_seqs)
    assert inputs.token_ids.tolist() == token_ids + token_padding
    assert inputs.positions.tolist() == positions + token_padding
    scratch = [NUM_BLOCKS * BLOCK_SIZE] * len(token_padding)
    assert inputs.slot_mapping.tolist() == slots + scratch
    assert inputs.seq_lens.tolist() == [end for _, _, end in truth] + seq_padding
    begins = inputs.cu_seqlens_q.tolist()
    assert begins[: num_seqs + 1] == ends
    assert len(begins) == shape.num_seqs + 1
    # Padding has no queries, except where every sequence has one.
    assert set(np.diff(begins[num_seqs:])) <= {int(shape.is_decode)}
    for index, (sequence, _, end) in enumerate(truth):
        used = -(-end // BLOCK_SIZE)
        assert inputs.block_table[index, :used].tolist() == sequence.blocks[:used]
    rows = host.sampled_rows
    assert host.sampled_slots.tolist() == [slot for _, slot, _ in sampled]
    assert inputs.logits_indices[rows].tolist() == [at for at, _, _ in sampled]
    assert inputs.logits_indices.max() < shape.num_tokens
    assert step.draw_slots[rows].tolist() == [slot for _, slot, _ in sampled]
    assert step.draw_positions[rows].tolist() == [end for _, _, end in sampled]
    others = np.setdiff1d(np.arange(shape.num_seqs), rows)
    assert set(step.draw_slots[others].tolist()) <= {PADDING_SLOT}
    assert inputs.max_seqlen_q >= max(end - begin for _, begin, end in truth)
    assert inputs.max_seqlen_k >= max(end for _, _, end in truth)
    draw(table, plan, step.draw_slots, rows, [slot for _, slot, _ in sampled])


def test_a_step_of_nothing_but_padding_changes_nothing():
    table = row_table()
    before = [getattr(table._tables, name).clone() for name in ("seq_lens", "block_table")]
    for shape in (StepShape(4, 4, True), StepShape(16, 5, False)):
        step = table.captured_step(shape)
        table.advance(step)
        assert set(step.inputs.slot_mapping.tolist()) == {NUM_BLOCKS * BLOCK_SIZE}
        assert not step.inputs.seq_lens.any()
    after = [getattr(table._tables, name) for name in ("seq_lens", "block_table")]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def decode_row(slot, blocks=()):
    return PlannedRow(
        slot=slot, num_tokens=1, token_ids=None, new_block_ids=(int32(blocks),), is_sampled=True
    )


def start_of(slot, num_cached, blocks):
    sequence = Sequence(np.random.default_rng(0), list(range(NUM_BLOCKS)))
    sequence.num_cached, sequence.start_blocks = num_cached, blocks
    return row_start(slot, sequence)


def steps(table, static, *plans):
    """Lengths and used blocks by row, of one plan after another."""
    for step_id, (starts, rows) in enumerate(plans):
        plan = StepPlan(step_id=step_id, ends=(), starts=tuple(starts), rows=tuple(rows))
        table.enter(plan, static)
        table.advance(static)
        inputs = static.inputs
        lens = inputs.seq_lens[: len(rows)].tolist()
        blocks = [inputs.block_table[i, : -(-n // BLOCK_SIZE)].tolist() for i, n in enumerate(lens)]
        yield lens, blocks


def test_repeated_rows_advance_and_grow():
    """Plans repeat the same row objects, as a scheduler's do, and append blocks now and then."""
    table = row_table()
    static = table.captured_step(StepShape(2, 2, True))
    one, two = decode_row(3), decode_row(1)
    starts = [start_of(3, 3, [10]), start_of(1, 6, [20, 21])]
    assert list(
        steps(
            table,
            static,
            (starts, [one, two]),
            ([], [one, two]),
            ([], [decode_row(3, [11]), decode_row(1, [22])]),
            ([], [one, two]),
            ([], [one, two]),
            ([], [two, one]),
            ([start_of(1, 4, [30])], [one, decode_row(1, [31])]),
            ([], [one, two]),
        )
    )[2:] == [
        ([6, 9], [[10, 11], [20, 21, 22]]),
        ([7, 10], [[10, 11], [20, 21, 22]]),
        ([8, 11], [[10, 11], [20, 21, 22]]),
        ([12, 9], [[20, 21, 22], [10, 11, 0]]),
        ([10, 5], [[10, 11, 0], [30, 31]]),
        ([11, 6], [[10, 11, 0], [30, 31]]),
    ]


def test_rows_that_could_not_be_sent_are_not_repeated(monkeypatch):
    table = row_table()
    buffers = table.captured_step(StepShape(2, 2, True))
    one, two = decode_row(3), decode_row(1)
    starts = [start_of(3, 3, [10]), start_of(1, 6, [20, 21])]
    list(steps(table, buffers, (starts, [one, two]), ([], [one, two])))
    with monkeypatch.context() as patched:
        patched.setattr(StepBuffers, "_send", failing := Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            list(steps(table, buffers, ([], [two])))
    assert failing.called
    grown = [decode_row(3, [11]), decode_row(1, [22])]
    assert list(steps(table, buffers, ([], grown))) == [([6, 9], [[10, 11], [20, 21, 22]])]


def test_a_slot_may_change_hands_between_two_steps_of_a_shape():
    """A slot whose sequence changed in a step of another shape keeps its new blocks."""
    table = row_table()
    decode, other = (
        table.captured_step(StepShape(1, 1, True)),
        table.captured_step(StepShape(2, 2, True)),
    )
    row = decode_row(0)
    list(steps(table, decode, ([start_of(0, 3, [10])], [row]), ([], [decode_row(0, [11])])))
    list(steps(table, other, ([start_of(0, 5, [40, 41])], [decode_row(0)])))
    ((lens, blocks),) = steps(table, decode, ([], [decode_row(0)]))
    assert (lens, blocks) == ([7], [[40, 41]])


def test_a_sequence_may_start_without_a_row_and_with_more_blocks_than_a_step_holds():
    table = row_table()
    static = table.captured_step(StepShape(1, 1, True))
    static.num_new_blocks = 2
    first, second = steps(
        table,
        static,
        ([start_of(2, 17, [1, 2, 3, 4, 5]), start_of(4, 9, [50, 51, 52])], [decode_row(2)]),
        ([], [decode_row(4)]),
    )
    assert first == ([18], [[1, 2, 3, 4, 5]])
    assert second == ([10], [[50, 51, 52]])


def test_rows_that_all_grow_at_once_are_one_upload(monkeypatch):
    table = row_table(max_model_len=100 * BLOCK_SIZE)
    static = table.captured_step(StepShape(2, 2, True))
    starts = [start_of(3, 3, [10]), start_of(1, 4, [20])]
    list(steps(table, static, (starts, [decode_row(3), decode_row(1, [21])])))
    monkeypatch.setattr(table, "_send_blocks", lambda *_: pytest.fail("a row by itself"))
    grown = [decode_row(3, range(30, 31 + LOOKAHEAD)), decode_row(1, range(60, 61 + LOOKAHEAD))]
    ((lens, blocks),) = steps(table, static, ([], grown))
    assert (lens, blocks) == ([5, 6], [[10, 30], [20, 21]])


@pytest.mark.parametrize("is_captured", [False, True], ids=["exact", "captured"])
@pytest.mark.parametrize(
    "change",
    [
        {"new_block_ids": (int32([]), int32([7]))},
        {"num_tokens": 3},
    ],
    ids=["second group", "drafts"],
)
def test_a_row_that_the_table_cannot_hold_is_refused(change, is_captured):
    """Such parts were once ignored, and the step read the wrong blocks."""
    table = row_table()
    buffers = table.captured_step(StepShape(1, 1, True))
    list(steps(table, buffers, ([start_of(0, 3, [10])], [decode_row(0)])))
    plan = StepPlan(step_id=1, ends=(), starts=(), rows=(replace(decode_row(0), **change),))
    with pytest.raises((AssertionError, ValueError)):
        table.enter(plan, buffers) if is_captured else table.enter_exact(plan)


@pytest.mark.parametrize(
    "change",
    [{"block_ids": (int32([10]), int32([7]))}, {"adapter_slot": 0}],
    ids=["second group", "adapter"],
)
@pytest.mark.parametrize("has_row", [True, False])
def test_a_start_that_the_table_cannot_hold_is_refused(change, has_row):
    table = row_table()
    start = replace(start_of(0, 3, [10]), **change)
    rows = (decode_row(0 if has_row else 1),)
    with pytest.raises((AssertionError, ValueError)):
        table.enter_exact(StepPlan(step_id=0, ends=(), starts=(start,), rows=rows))


def test_a_blank_step_is_one_prompt_in_the_first_blocks():
    inputs = blank_step(6, torch.device("cpu"), block_size=4, num_logits=3)
    assert inputs.token_ids.tolist() == inputs.positions.tolist() == [0] * 6
    assert inputs.cu_seqlens_q.tolist() == [0, 6]
    assert inputs.seq_lens.tolist() == [6]
    assert inputs.block_table.tolist() == [[0, 1]]
    assert inputs.slot_mapping.tolist() == list(range(6))
    assert inputs.logits_indices.tolist() == [0] * 3
    assert (inputs.max_seqlen_q, inputs.max_seqlen_k) == (6, 6)
    longer = blank_step(6, torch.device("meta"), block_size=4, max_seqlen_k=20)
    assert (longer.block_table.shape, longer.max_seqlen_k) == ((1, 5), 20)
