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


def test_a_constraint_starts_after_the_output_so_far(compiler_over, make_backend):
    constraint = compiler_over(make_backend).compile(REGEX, encode("abab")).result(10)
    constraint.accept(encode("ab"))


def test_an_output_that_does_not_follow_the_grammar_is_refused(compiler_over, make_backend):
    future = compiler_over(make_backend).compile(REGEX, encode("abx"))
    with pytest.raises(GrammarRefused, match="token 120"):
        future.result(10)


def test_grammars_wait_for_the_vocabulary_without_blocking_callers(compiler_over, make_backend):
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


def test_without_a_vocabulary_every_grammar_fails_with_the_reason(compiler_over):
    def broken():
        raise BackendUnavailable("no tokenizer here")

    compiler = compiler_over(broken)
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="no tokenizer here"):
            compiler.compile(REGEX).result(10)


def test_close_cancels_waiting_grammars(make_backend):
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


def test_an_unexpected_error_of_a_backend_fails_only_its_request(compiler_over, make_backend):
    class Broken:
        name, vocab_size = "broken", 300

        def compile(self, grammar, /):
            raise RecursionError("too deep")

    with pytest.raises(GrammarRefused, match="RecursionError"):
        compiler_over(Broken).compile(REGEX).result(10)


def test_a_grammar_that_takes_long_to_begin_blocks_no_other(
    compiler_over, make_backend, monkeypatch
):
    """The grammar forces 100 MB of text; the compiler does not hold the GIL meanwhile."""
    monkeypatch.setattr("openinfer_grammar.llguidance._backend._MAX_BEGIN_SECONDS", 0.2)
    compiler = compiler_over(make_backend)
    compiler.compile(REGEX).result(10)
    slow = compiler.compile(Grammar(kind="regex", text="(a{1000}){1000}"))
    longest, last = 0.0, time.monotonic()
    while not slow.done():
        time.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    with pytest.raises(GrammarRefused, match=r"more than 0\.2 s"):
        slow.result()
    assert longest < 0.15


def test_a_grammar_without_a_text_is_refused(backend):
    with pytest.raises(GrammarRefused, match="no token can come"):
        backend.compile(Grammar(kind="grammar", text="start: start"))
