"""sample: every back end against the float64 definition, and the definition by hand."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats

from openinfer_kernels import (
    IN_PROMPT,
    PADDING,
    Column,
    Failure,
    Needs,
    SampleRows,
    SampleSpec,
    plan_sample,
)
from openinfer_kernels.ops.sample import SampleState

PROMPT = (3, 5, 5, 2)
"""The prompt of every row; its length is the position of the first output token."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The sampling parameters of a row, which `fill` writes into the tables."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    output: tuple[int, ...] = ()
    seed: int = 0
    is_processed: bool = True

    @property
    def position(self) -> int:
        return len(PROMPT) + len(self.output)

    def needs(self) -> int:
        needs = Needs.PROCESSED if self.is_processed else 0
        if self.temperature:
            needs |= Needs.NOISE
            if self.top_k or self.top_p < 1 or self.min_p:
                needs |= Needs.FILTER
        for need, is_used in (
            (Needs.MIN_TOKENS, self.min_tokens),
            (Needs.BIAS, self.bias or self.allowed is not None),
            (Needs.PENALTIES, self.repetition != 1 or self.presence or self.frequency),
            (Needs.BAD_WORDS, self.bad_words),
        ):
            needs |= need if is_used else 0
        return needs


def fill(state: SampleState, slot: int, row: Row) -> None:
    vocab_size = state.counts.shape[1]
    table = np.zeros(state.table.shape[1], np.int64)
    floats = table.view(np.float64)
    table[Column.NEEDS] = row.needs()
    table[Column.SEED] = row.seed
    table[Column.FIRST_OUTPUT_POSITION] = len(PROMPT)
    table[Column.FIRST_STOP_POSITION] = len(PROMPT) + row.min_tokens
    table[Column.TOP_K] = row.top_k or vocab_size
    floats[Column.INVERSE_TEMPERATURE] = 1 / row.temperature if row.temperature else 1
    floats[Column.TOP_P] = row.top_p
    floats[Column.LOG_MIN_P] = math.log(row.min_p) if row.min_p else -math.inf
    floats[Column.REPETITION_PENALTY] = row.repetition
    floats[Column.PRESENCE_PENALTY] = row.presence
    floats[Column.FREQUENCY_PENALTY] = row.frequency
    if row.stop_ids:
        table[Column.STOP_IDS :] = np.resize(row.stop_ids, len(table) - Column.STOP_IDS)
    state.table[slot] = torch.from_numpy(table)
    state.counts[slot] = 0
    state.counts[slot, list(PROMPT)] = IN_PROMPT
    for token_id in row.output:
        state.counts[slot, token_id] += 1
    state.bias[slot] = 0 if row.allowed is None else -math.inf
    if row.allowed is not None:
        state.bias[slot, list(row.allowed)] = 0
    for token_id, bias in row.bias:
        state.bias[slot, token_id] += bias
    state.bad_words[slot] = PADDING
    for index, word in enumerate(row.bad_words):
        state.bad_words[slot, index, -len(word) :] = torch.tensor(word, dtype=torch.int32)
    for position, token_id in enumerate(row.output, len(PROMPT)):
        state.recent[slot, position % state.recent.shape[1]] = token_id


class Bench:
    """A back end with its tables and the positions of its rows."""

    def __init__(self, backend, rows, vocab_size, device="cpu"):
        spec = SampleSpec(
            vocab_size=vocab_size,
            num_slots=2 * len(rows) + 1,
            max_rows=len(rows),
            max_stop_ids=3,
            max_bad_words=4,
            max_bad_word_ids=4,
        )
        self.state = spec.allocate(device)
        self.draw = plan_sample(spec, self.state, device, backend)
        # Slots with gaps, in descending order.
        self.slots = np.arange(len(rows))[::-1] * 2 + 1
        self.needs = np.array([row.needs() for row in rows])
        self.max_top_k = max((row.top_k or 0 for row in rows), default=0)
        self.has_top_p = any(row.top_p < 1 for row in rows)
        self.positions = torch.tensor([row.position for row in rows], device=device)
        for slot, row in zip(self.slots, rows, strict=True):
            fill(self.state, int(slot), row)

    def step(self, logits, masks=None):
        device = self.positions.device
        rows = SampleRows(
            torch.from_numpy(self.slots.copy()).to(device),
            self.positions,
            self.needs,
            max_top_k=self.max_top_k if self.max_top_k < logits.shape[1] else 0,
            has_top_p=self.has_top_p,
            masks=masks and (masks[0], masks[1].to(device)),
        )
        drawn = self.draw(logits.to(device), rows)
        self.positions = self.positions + 1
        return drawn


MIXED = (
    Row(temperature=0.0),
    Row(temperature=0.7, seed=2**63 - 1),
    Row(temperature=1.3, top_k=7, seed=-5),
    Row(top_p=0.8, seed=3),
    Row(min_p=0.05, seed=4),
    Row(temperature=0.9, top_k=40, top_p=0.9, min_p=0.01, seed=5),
    Row(temperature=0.0, repetition=1.8, output=(1, 1, 2), is_processed=False),
    Row(presence=1.5, frequency=0.7, output=(8, 8, 8, 3), seed=6),
    Row(repetition=0.6, presence=-1.0, frequency=-0.3, top_k=12, output=(7,), seed=7),
    Row(bias=((4, 6.0), (11, -100.0), (4, 1.0)), seed=8),
    Row(allowed=(2, 30, 31, 32, 64, 65, 301), bias=((30, 2.0),), top_p=0.9, seed=9),
    Row(stop_ids=(6, 17), min_tokens=3, bias=((6, 50.0), (17, 49.0)), seed=10),
    Row(temperature=0.0, bad_words=((12,), (8, 13), (8, 8, 14)), output=(8, 8), seed=11),
    Row(temperature=0.0, bad_words=((2, 15), (5, 2, 16)), bias=((15, 90.0), (16, 80.0))),
    Row(top_k=1500, seed=12, is_processed=False),
    Row(top_k=1500, top_p=0.7, min_p=1e-4, seed=13),
    Row(min_p=1e-3, top_p=0.95, seed=14),
)
"""All controls, alone and together."""
ASKED = np.array([row for row, mixed in enumerate(MIXED) if mixed.is_processed])
"""Rows of `MIXED` that want processed scores."""


def backend_device(backend, triton_device):
    return triton_device if backend == "triton" else "cpu"


BACKENDS = ["torch", "triton", "cpu"]


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("vocab_size", [320, 10_007])
@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_every_control_at_once_against_float64(backend, vocab_size, spread, triton_device, random):
    one = Bench("reference", MIXED, vocab_size)
    other = Bench(backend, MIXED, vocab_size, backend_device(backend, triton_device))
    # The interpreter is slow, so it runs one step if the vocabulary is large.
    for _ in range(6 if backend != "triton" else 1 if vocab_size > 320 else 2):
        logits = random(len(MIXED), vocab_size) * spread
        expected, got = one.step(logits), other.step(logits)
        assert got.token_ids.tolist() == expected.token_ids.tolist()
        assert not got.failures.any()
        torch.testing.assert_close(got.processed.cpu(), expected.processed, rtol=1e-4, atol=1e-4)
        assert len(got.processed) == len(ASKED)
        for slot, mixed in zip(one.slots, MIXED, strict=True):
            if mixed.needs() & Needs.PENALTIES:
                assert torch.equal(other.state.counts[slot].cpu(), one.state.counts[slot])
            if mixed.needs() & Needs.BAD_WORDS:
                assert torch.equal(other.state.recent[slot].cpu(), one.state.recent[slot])


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_alone_each_row_draws_what_it_draws_among_others(backend, triton_device, random):
    device = backend_device(backend, triton_device)
    logits = random(len(MIXED), 10_007) * 3
    together = Bench(backend, MIXED, 10_007, device).step(logits)
    for row, mixed in enumerate(MIXED):
        alone = Bench(backend, [mixed], 10_007, device).step(logits[row : row + 1])
        assert int(alone.token_ids[0]) == int(together.token_ids[row]), mixed
        if mixed.is_processed:
            entry = ASKED.tolist().index(row)
            assert torch.equal(alone.processed[0], together.processed[entry])


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_logits_are_computed_in_float32(backend, triton_device, random):
    device = backend_device(backend, triton_device)
    logits = (random(len(MIXED), 320) * 2).bfloat16()
    expected = Bench("reference", MIXED, 320).step(logits)
    assert Bench(backend, MIXED, 320, device).step(logits).token_ids.tolist() == (
        expected.token_ids.tolist()
    )


@pytest.mark.long
def test_processed_scores_of_a_recorded_draw_are_those_before_its_tokens(triton_device, random):
    logits, plain = random(len(MIXED), 320) * 2, ~Needs.PROCESSED
    left, asked = (Bench("triton", MIXED, 320, triton_device) for _ in range(2))
    for _ in range(2):
        expected = asked.step(logits)
        rows = SampleRows(
            torch.from_numpy(left.slots.copy()).to(triton_device),
            left.positions,
            left.needs & plain,
        )
        left.positions = left.positions + 1
        device_logits = logits.to(triton_device)
        drawn = left.draw(device_logits, rows)
        assert drawn.processed is None
        processed = left.draw.processed(device_logits, rows, drawn.packed, ASKED)
        assert torch.equal(drawn.packed, expected.packed)
        assert torch.equal(processed, expected.processed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_draws_what_an_eager_one_draws(random):
    rows = [replace(row, is_processed=False) for row in MIXED]
    eager, captured, warm = (Bench("triton", rows, 10_007, "cuda") for _ in range(3))
    logits = torch.zeros(len(rows), 10_007, device="cuda")
    warm.step(logits)  # compiles
    positions = captured.positions.clone()
    step = SampleRows(
        torch.from_numpy(captured.slots.copy()).cuda(),
        positions,
        captured.needs,
        max_top_k=captured.max_top_k,
        has_top_p=captured.has_top_p,
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = captured.draw(logits, step)
    for _ in range(5):
        logits.copy_(random(len(rows), 10_007) * 3)
        positions.copy_(eager.positions)
        graph.replay()
        assert drawn.token_ids.tolist() == eager.step(logits).token_ids.tolist()
        assert torch.equal(captured.state.counts, eager.state.counts)
        assert torch.equal(captured.state.recent, eager.state.recent)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
class TestLimits:
    """Cases with one right result, written by hand; they check the definition as well."""

    @pytest.fixture
    def run(self, backend, triton_device):
        def run(logits, rows, masks=None):
            rows = [rows] * len(logits) if isinstance(rows, Row) else rows
            device = backend_device(backend, triton_device)
            return Bench(backend, rows, logits.shape[1], device).step(logits, masks)

        return run

    def test_greedy_takes_the_lowest_id_of_a_tie(self, run):
        logits = torch.zeros(3, 9000)
        logits[0, [70, 8000]] = 5.0
        logits[1, 8999] = 1e-3
        logits[2] -= 5.0
        drawn = run(logits, Row(temperature=0.0))
        assert drawn.token_ids.tolist() == [70, 8999, 0]

    def test_ties_with_the_last_one_kept_are_kept(self, run):
        logits = torch.tensor([[1.0, 2.0, 1.0, 3.0, 1.0, 0.0]]).repeat(3, 1)
        logits[2, [0, 2]] = torch.tensor([0.0, -0.0])
        rows = [Row(top_k=3), Row(top_p=0.9), Row(top_k=6)]
        kept = run(logits, rows).processed.isfinite().tolist()
        assert kept == [[True] * 5 + [False]] * 2 + [[True] * 6]

    def test_a_filter_of_everything_leaves_the_best(self, run):
        logits = torch.tensor([[0.0, 2.0, 1.0, 0.0, 1.5, -1.0]]).repeat(3, 1)
        rows = [Row(top_p=1e-9), Row(min_p=1.0), Row(top_k=1)]
        drawn = run(logits, rows)
        assert drawn.token_ids.tolist() == [1, 1, 1]
        assert drawn.processed.isfinite().sum(dim=1).tolist() == [1, 1, 1]

    def test_all_equal_scores(self, run):
        logits = torch.full((4, 9000), 2.5)
        rows = [Row(top_k=3), Row(top_p=0.5), Row(top_k=2000, top_p=0.3), Row(min_p=0.9)]
        drawn = run(logits, [replace(row, seed=i) for i, row in enumerate(rows)])
        assert drawn.processed.isfinite().all()
        assert len(set(drawn.token_ids.tolist())) == 4

    def test_a_bad_row_fails_alone(self, run):
        logits = torch.zeros(12, 5000)
        logits[:, 4500] = 1.0
        logits[1, 5], logits[3, 5] = math.nan, math.inf
        logits[5, 4999], logits[7], logits[8, :4900] = math.nan, -math.inf, -math.inf
        logits[9, 17], logits[10, 18] = math.nan, math.inf
        rows = [Row(temperature=0.0)] * 4 + [Row(top_k=4, top_p=0.9)] * 5
        rows += [Row(), Row(top_p=0.5), Row(allowed=())]
        drawn = run(logits, rows)
        assert drawn.failures.tolist() == [0, 1, 0, 1, 0, 1, 0, 2, 0, 1, 1, 2]
        assert ((drawn.token_ids >= 0) & (drawn.token_ids < 5000)).all()
        assert drawn.token_ids[8] >= 4900
        assert drawn.token_ids[[0, 2]].tolist() == [4500, 4500]

    def test_minus_infinity_is_never_drawn(self, run):
        logits = torch.full((8, 6000), -math.inf)
        logits[:, [2, 5999]] = 0.0
        rows = [Row(top_k=5, seed=i) if i % 2 else Row(top_p=0.99, seed=i) for i in range(8)]
        drawn = run(logits, rows)
        assert not drawn.failures.any()
        assert set(drawn.token_ids.tolist()) == {2, 5999}

    def test_masks_bind_their_rows_alone(self, run):
        logits = torch.arange(70.0).repeat(4, 1)
        bits = np.zeros((3, 3), np.uint32)
        bits[0, 2], bits[1, 0] = 1 << 1, 1 << 31
        masks = (np.array([0, 2, 3]), torch.from_numpy(bits.view(np.int32)))
        rows = [Row(temperature=0.0), Row(temperature=0.0), Row(top_p=0.9), Row()]
        drawn = run(logits, rows, masks)
        assert drawn.token_ids[:3].tolist() == [65, 69, 31]
        assert drawn.failures.tolist() == [0, 0, 0, Failure.NOTHING_LEFT]

    def test_logits_are_left_alone(self, run):
        logits = torch.linspace(-3, 3, 320).repeat(len(MIXED), 1)
        before = logits.clone()
        run(logits, list(MIXED))
        assert torch.equal(logits, before)

    def test_penalties_by_hand(self, run):
        logits = torch.tensor([[1.0, -1.0, 2.0, 0.5, 0.0, -2.0, 0, 0, 0, 0]]).repeat(3, 1)
        rows = [
            Row(temperature=0.0, repetition=2.0, output=(1, 2)),
            Row(temperature=0.0, frequency=0.5, output=(0, 0, 1)),
            Row(temperature=0.0, presence=0.5, output=(0, 0, 1)),
        ]
        got = run(logits, rows).processed[:, :6].tolist()
        assert got == [
            [1.0, -2.0, 1.0, 0.25, 0.0, -4.0],  # repetition counts the prompt: 2, 3 and 5
            [0.0, -1.5, 2.0, 0.5, 0.0, -2.0],  # presence and frequency do not
            [0.5, -1.5, 2.0, 0.5, 0.0, -2.0],
        ]

    def test_bad_words_by_hand(self, run):
        logits = torch.zeros(5, 320)
        words = ((1,), (7, 9), (2, 7, 3), (6, 7, 8, 9))  # a word cannot begin in the prompt
        outputs = [(), (7,), (2, 7), (1, 6, 7, 8), (7, 6)]
        rows = [Row(temperature=0.0, bad_words=words, output=output) for output in outputs]
        ruled_out = [
            row.isinf().nonzero().flatten().tolist() for row in run(logits, rows).processed
        ]
        assert ruled_out == [[1], [1, 9], [1, 3, 9], [1, 9], [1]]

    def test_min_tokens_by_hand(self, run):
        logits = torch.zeros(3, 320)
        held = Row(temperature=0.0, stop_ids=(0, 1), min_tokens=2)
        rows = [replace(held, output=output) for output in ((), (5,), (5, 5))]
        assert run(logits, rows).token_ids.tolist() == [2, 2, 0]


LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, -3.0, 0.5, 1.0])
NUM_DRAWS = 4000


# Interpreted kernels would take minutes; the tests above compare their tokens.
@pytest.mark.parametrize("backend", BACKENDS if torch.cuda.is_available() else ["torch", "cpu"])
@pytest.mark.parametrize(
    "row",
    [
        Row(temperature=1.7),
        Row(top_k=3),
        Row(top_p=0.6),
        Row(min_p=0.3),
        Row(repetition=1.5, output=(0, 1, 1)),
        Row(presence=1.2, output=(0, 1, 1)),
        Row(frequency=0.8, output=(0, 1, 1)),
        Row(bias=((5, 4.0), (0, -1.0))),
        Row(allowed=(1, 2, 5)),
        Row(bad_words=((0,), (1, 4)), output=(1,)),
        Row(stop_ids=(0, 7), min_tokens=9),
        Row(temperature=1.5, top_k=5, top_p=0.9, min_p=0.1, repetition=1.2, bias=((5, 5.0),)),
    ],
    ids=lambda row: (
        f"{row.needs():b}-{row.top_k}-{row.top_p}-{row.min_p}-{row.repetition}-{row.presence}"
    ),
)
def test_draws_follow_the_distribution(backend, row, triton_device):
    device = backend_device(backend, triton_device)
    rows = [replace(row, seed=seed) for seed in range(NUM_DRAWS)]
    logits = LOGITS.repeat(NUM_DRAWS, 1)
    drawn = Bench(backend, rows, len(LOGITS), device).step(logits)
    exact = Bench("reference", [row], len(LOGITS)).step(logits[:1]).processed[0]
    expected = exact.double().softmax(dim=0).numpy() * NUM_DRAWS
    observed = np.bincount(drawn.token_ids.cpu(), minlength=len(LOGITS))
    assert (observed[expected == 0] == 0).all()
    is_kept = expected > 0
    assert stats.chisquare(observed[is_kept], expected[is_kept]).pvalue > 1e-3


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("table", ["counts", "bias"])
@pytest.mark.parametrize("num_ids", [0, 1, 1000])
def test_numbers_are_entered_in_one_row_alone(backend, table, num_ids, triton_device, random):
    spec = SampleSpec(vocab_size=1333, num_slots=3, max_rows=3)  # rows are not aligned
    device = backend_device(backend, triton_device)
    state = spec.allocate(device)
    draw = plan_sample(spec, state, device, backend)
    rows = getattr(state, table).fill_(7)
    ids = torch.randperm(1333)[:num_ids].numpy()
    values = (random(num_ids) * 100).to(rows.dtype).numpy()
    draw.write_row(rows[1], ids, values)
    expected = np.full((3, 1333), 7, values.dtype)
    expected[1, ids] = values
    np.testing.assert_array_equal(rows.cpu().numpy(), expected)
