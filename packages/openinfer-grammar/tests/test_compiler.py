import threading
import time

import pytest

from openinfer_contract import Grammar
from openinfer_grammar import BackendUnavailable, GrammarCompiler, GrammarRefused
from openinfer_testing.grammar import encode

REGEX = Grammar(kind="regex", text="(a|b)+")


@pytest.fixture
def compiler_over():
    made = []

    def over(make):
        made.append(GrammarCompiler(make))
        return made[-1]

    yield over
    for compiler in made:
        compiler.close()


def test_a_constraint_stands_behind_the_output_so_far(compiler_over, make_backend):
    constraint = compiler_over(make_backend).compile(REGEX, encode("abab")).result(10)
    constraint.accept(encode("ab"))


def test_an_output_that_does_not_follow_the_grammar_is_refused(compiler_over, make_backend):
    future = compiler_over(make_backend).compile(REGEX, encode("abx"))
    with pytest.raises(GrammarRefused, match="token 120"):
        future.result(10)


def test_grammars_wait_for_the_vocabulary_and_nobody_else_does(compiler_over, make_backend):
    may_build = threading.Event()

    def slow():
        assert may_build.wait(10)
        return make_backend()

    begin = time.monotonic()
    futures = [compiler_over(slow).compile(REGEX) for _ in range(3)]
    assert time.monotonic() - begin < 1
    assert not any(future.done() for future in futures)
    may_build.set()
    for future in futures:
        future.result(10)


def test_without_a_vocabulary_every_grammar_says_why(compiler_over):
    def broken():
        raise BackendUnavailable("no tokenizer here")

    compiler = compiler_over(broken)
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="no tokenizer here"):
            compiler.compile(REGEX).result(10)


def test_what_waits_is_cancelled_at_the_end(make_backend):
    may_build = threading.Event()

    def slow():
        assert may_build.wait(10)
        return make_backend()

    compiler = GrammarCompiler(slow)
    futures = [compiler.compile(REGEX) for _ in range(4)]
    threading.Timer(0.1, may_build.set).start()
    compiler.close()
    assert all(future.done() for future in futures)
    assert futures[-1].cancelled()
