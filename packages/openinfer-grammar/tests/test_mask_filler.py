"""Masks filled in parallel: the same masks as on one thread, the right order, and failures by
row."""

import threading

import numpy as np
import pytest

from openinfer_contract import Grammar
from openinfer_grammar import Constraint, GrammarFailed, MaskFiller, load_backend, num_mask_words
from openinfer_grammar.llguidance._native_library import library, releasing_gil
from openinfer_testing.grammar import EOS_TOKEN_IDS, VOCAB_SIZE, encode, tokenizer_json

ADDRESS = Grammar(kind="regex", text="[a-d]{1,64}@[a-d.]{1,60}")


class Source:
    """Fills a row with a number, after all participants of the barrier have begun."""

    def __init__(self, number, fill_seconds, barrier=None, error=None):
        self.number, self.fill_seconds = number, fill_seconds
        self.barrier, self.error = barrier, error
        self.releases_gil = self.thread = None

    def fill_mask(self, row, /):
        self.releases_gil = library().functions is library().long
        self.thread = threading.get_ident()
        if self.barrier is not None:
            self.barrier.wait(10)
        if self.error is not None:
            raise self.error
        row[:] = self.number


@pytest.fixture
def make_filler():
    made = []

    def make(num_threads):
        made.append(MaskFiller(num_threads))
        return made[-1]

    yield make
    for filler in made:
        filler.close()


def rows_of(sources):
    return [(source, np.zeros(4, np.uint32)) for source in sources]


def test_expensive_rows_are_filled_at_the_same_time(make_filler):
    barrier = threading.Barrier(3)
    sources = [Source(number, 0.01, barrier) for number in range(3)]
    rows = rows_of(sources)
    assert make_filler(3).fill(rows) == {}
    assert [row.tolist() for _, row in rows] == [[number] * 4 for number in range(3)]
    assert len({source.thread for source in sources}) == 3
    assert all(source.releases_gil for source in sources)
    assert library().functions is library().short


@pytest.mark.parametrize(
    ("num_threads", "costs"), [(4, [1e-5] * 8), (4, [1.0]), (1, [1.0] * 4), (4, [])]
)
def test_cheap_rows_stay_on_the_calling_thread(make_filler, num_threads, costs):
    filler, sources = make_filler(num_threads), [Source(1, cost) for cost in costs]
    assert filler.fill(rows_of(sources)) == {}
    assert {source.thread for source in sources} <= {threading.get_ident()}
    assert not any(source.releases_gil for source in sources)
    assert filler._threads is None


def test_the_longest_row_is_filled_first(make_filler):
    order, barrier = [], threading.Barrier(2)

    class Noted(Source):
        def fill_mask(self, row, /):
            order.append(self.number)
            super().fill_mask(row)

    # Neither thread continues until both are filling one of the two longest rows.
    held = [Noted(9, 1.0, barrier), Noted(8, 0.9, barrier)]
    cheap = Noted(0, 0.0)
    rows = rows_of([cheap, Noted(1, 0.1), Noted(3, 0.3), *held, Noted(2, 0.2)])
    assert make_filler(2).fill(rows) == {}
    assert set(order[:2]) == {8, 9}
    assert sorted(order) == [0, 1, 2, 3, 8, 9]
    assert [row[0] for _, row in rows] == [0, 1, 3, 9, 8, 2]
    assert cheap.thread == threading.get_ident()


def test_a_failure_affects_only_its_row(make_filler):
    failed = GrammarFailed("a limit")
    sources = [Source(n, 0.01, error=failed if n == 2 else None) for n in range(6)]
    rows = rows_of(sources)
    assert make_filler(3).fill(rows) == {2: failed}
    assert [row[0] for _, row in rows] == [0, 1, 0, 3, 4, 5]


def test_an_error_is_raised_after_all_threads_have_finished_their_rows(make_filler):
    barrier = threading.Barrier(2)
    slow, faulty = Source(1, 0.01, barrier), Source(2, 0.01, barrier, error=RuntimeError("a fault"))
    rows = rows_of([slow, faulty])
    with pytest.raises(RuntimeError, match="a fault"):
        make_filler(2).fill(rows)
    assert rows[0][1].tolist() == [1] * 4


def test_masks_are_those_of_one_thread(make_filler, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    backend = load_backend("llguidance", path, vocab_size=VOCAB_SIZE, eos_token_ids=EOS_TOKEN_IDS)

    def make(number):
        with releasing_gil():
            constraint = Constraint(backend.compile(ADDRESS), ADDRESS)
        constraint.accept(encode("abcd" * number + "a@b."[: number % 4 + 1]))
        return constraint

    num_words, filler = num_mask_words(VOCAB_SIZE), make_filler(4)
    for _ in range(5):
        alone, beside = ([make(number) for number in range(8)] for _ in range(2))
        wanted, got = (np.zeros((8, num_words), np.uint32) for _ in range(2))
        for constraint, row in zip(alone, wanted, strict=True):
            constraint.fill_mask(row)
        for constraint in beside:
            constraint._fill_seconds = 1.0
        assert filler.fill(list(zip(beside, got, strict=True))) == {}
        assert (got == wanted).all()
        assert wanted.any(axis=1).all()
