import time

import numpy as np
import pytest

from openinfer_contract import Grammar, pack_ids
from openinfer_grammar import Accepted, Constraint, GrammarFailed, num_mask_words
from openinfer_testing.grammar import EOS_TOKEN_IDS, VOCAB_SIZE, encode

CLOSE, OPEN = encode("z"), encode("q")


def constraint(backend, text="abx(c|d)", **options):
    grammar = Grammar(kind="regex", text=text, **options)
    return Constraint(backend.compile(grammar), grammar)


def allowed(subject):
    row = np.full(num_mask_words(VOCAB_SIZE), 5, np.uint32)
    subject.fill_mask(row)
    return np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist()


def test_forced_tokens_are_all_that_the_mask_allows(backend):
    subject = constraint(backend)
    first, *others = subject.forced
    assert allowed(subject) == [first]
    subject.accept([first])
    assert list(subject.forced) == others


class Loose:
    """A matcher that forces ids although its mask allows others too, as a backend may."""

    def fill_mask(self, rows, drafts=(), /):
        rows[:] = 0xFFFFFFFF
        return 1

    def accept(self, token_ids, /):
        return Accepted(len(token_ids), () if token_ids else (7, 9))

    def rollback(self, num_tokens, /):
        raise AssertionError("nothing is taken back")


def test_forced_tokens_are_the_only_ones_whatever_the_backend_allows():
    subject = Constraint(Loose(), Grammar(kind="json_object"))
    assert allowed(subject) == [7]
    subject.accept([7])
    assert allowed(subject) == [9]
    subject.accept([9])
    assert len(allowed(subject)) >= VOCAB_SIZE


def test_tokens_given_at_once_one_by_one_or_replayed_are_equal(backend):
    at_once = constraint(backend, "abx(c|d)abx(ab|c)d")
    output = [*at_once.forced]
    at_once.accept(output)
    output += encode("c")
    at_once.accept(output[-1:])
    forced = [*at_once.forced]
    at_once.accept(forced)
    one_by_one, replayed = (constraint(backend, "abx(c|d)abx(ab|c)d") for _ in range(2))
    for token_id in output:
        one_by_one.accept([token_id])
    assert list(one_by_one.forced) == forced
    replayed.accept([*output, *forced])
    one_by_one.accept(forced)
    assert allowed(at_once) == allowed(one_by_one) == allowed(replayed)


def test_another_tokenisation_of_forced_text_is_not_allowed(backend):
    subject = constraint(backend, "abcd")
    assert list(subject.forced) != encode("abcd"), "longer tokens spell it"
    with pytest.raises(GrammarFailed, match="does not allow token"):
        subject.accept(encode("abcd"))


def test_a_token_that_the_grammar_does_not_allow_fails(backend):
    subject = constraint(backend, "(a|b)+")
    with pytest.raises(GrammarFailed, match="token 120"):
        subject.accept(encode("ax"))


def test_nothing_is_masked_before_the_reasoning_has_ended(backend):
    subject = constraint(backend, start_after=pack_ids([*encode("yy"), *CLOSE]))
    for token_id in encode("abyyyxyyz"):
        assert not subject.is_masking
        assert not subject.forced
        subject.accept([token_id])
    assert subject.is_masking
    assert allowed(subject) == list(subject.forced[:1])


def test_replayed_tokens_after_the_reasoning_advance_the_grammar(backend):
    subject = constraint(backend, "(c|d)+", start_after=pack_ids(CLOSE))
    subject.accept(encode("xyzcd"))
    assert set(allowed(subject)) >= {*encode("cd"), *EOS_TOKEN_IDS}


@pytest.mark.parametrize("opens", [True, False])
def test_an_output_may_begin_with_reasoning(backend, opens):
    options = {"start_after": pack_ids(CLOSE), "may_open_with": pack_ids(OPEN)}
    subject = constraint(backend, "(c|d)c", **options)
    assert set(allowed(subject)) >= {*encode("cd"), *OPEN}
    assert not subject.forced
    subject.accept(OPEN if opens else encode("d"))
    assert subject.is_masking is not opens
    if opens:
        subject.accept(encode("anything") + CLOSE)
        assert set(allowed(subject)) >= {*encode("cd")}
        assert OPEN[0] not in allowed(subject)
    else:
        assert allowed(subject) == encode("c")


@pytest.mark.timed
def test_a_long_replay_takes_linear_time(backend):
    subject = constraint(backend, "(c|d)+", start_after=pack_ids(CLOSE))
    begin = time.thread_time()
    subject.accept(encode("x") * 200_000 + encode("zcd"))
    assert time.thread_time() - begin < 4
    assert set(allowed(subject)) >= {*encode("cd")}


class Counting(Loose):
    """Number of calls that pass ids to the matcher."""

    def __init__(self):
        self.told = []

    def accept(self, token_ids, /):
        self.told.append(list(token_ids))
        return super().accept(token_ids)


def test_the_matcher_gets_all_forced_ids_in_one_call():
    matcher = Counting()
    subject = Constraint(matcher, Grammar(kind="json_object"))
    subject.accept([7])
    subject.accept([9])
    assert matcher.told == [[], [7, 9]]


def test_an_error_names_the_id_given_instead_of_a_forced_one():
    subject = Constraint(Loose(), Grammar(kind="json_object"))
    with pytest.raises(GrammarFailed, match="token 8 "):
        subject.accept([7, 8])
