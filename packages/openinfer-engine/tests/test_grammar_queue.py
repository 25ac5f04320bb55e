"""The grammar queue alone, over a compiler that the test controls."""

import threading
from concurrent.futures import Future

import pytest
from msgspec.structs import replace

from openinfer_contract import GenerateRequest, Grammar, StopRules, pack_ids
from openinfer_engine import EngineOptions, TraceFailed, assemble
from openinfer_engine.loop._grammar_queue import GrammarQueue
from openinfer_testing import CountingShape, ZeroCostExecutor
from openinfer_testing.grammar import VOCAB_SIZE, tokenizer_json


class Waiting:
    """A compiler that never completes."""

    def __init__(self):
        self.futures = []

    def compile(self, grammar, output=()):
        self.futures.append(Future())
        return self.futures[-1]

    def close(self):
        pass


def test_what_nobody_waits_for_any_more_is_not_compiled():
    compiler = Waiting()
    queue = GrammarQueue(compiler, vocab_size=32, num_slots=2)
    for name in ("stays", "goes"):
        grammar = Grammar(kind="regex", text="a")
        request = GenerateRequest(
            request_id=name,
            prompt_token_ids=pack_ids([1]),
            stop=StopRules(max_tokens=1),
            grammar=grammar,
        )
        queue.compile(request)
    queue.drop("goes")
    assert [future.cancelled() for future in compiler.futures] == [False, True]
    assert queue.take_compiled() == []
    assert queue.is_compiling
    queue.drop("stays")
    assert not queue.is_compiling
    queue.close()


def test_a_loop_that_cannot_be_made_leaves_no_thread(tmp_path):
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(tokenizer_json())
    executor = ZeroCostExecutor(CountingShape(vocab_size=VOCAB_SIZE))
    executor._info = replace(executor._info, honoured=executor._info.honoured | {"grammar"})
    options = EngineOptions(trace_file=str(tmp_path / "missing" / "trace.json"))
    with pytest.raises(TraceFailed):
        assemble(executor, options, tokenizer=tokenizer)
    assert not [each for each in threading.enumerate() if each.name.startswith("openinfer")]
