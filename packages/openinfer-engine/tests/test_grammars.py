"""Grammars in the loop: compiling in the background, masks, forced tokens, and how they end."""

import itertools
import random
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from openinfer_contract import (
    Failed,
    Finished,
    GenerateRequest,
    Grammar,
    LogprobOptions,
    Pause,
    Rejected,
    Resume,
    Sampling,
    StopRules,
    pack_ids,
)
from openinfer_engine import EngineOptions, assemble
from openinfer_engine.loop._constrained_request import ConstrainedRequest
from openinfer_grammar import BackendUnavailable, Constraint, _mask_filler, load_backend
from openinfer_testing import CountingShape, ZeroCostExecutor
from openinfer_testing.engine import Recorder
from openinfer_testing.grammar import VOCAB_SIZE, decode, encode, tokenizer_json

EOS = VOCAB_SIZE - 1
REGEX = Grammar(kind="regex", text="(true|false), abxabxabx(c|d){2}")


class MaskedExecutor(ZeroCostExecutor):
    """Draws uniformly from the ids that a mask allows, once the mask is filled."""

    def __init__(self, shape):
        super().__init__(shape)
        self._info = replace(self._info, honoured=self._info.honoured | {"grammar"})
        self.rng = random.Random(1)
        self.calls = []
        self.plans = {}
        self.watch = None

    def launch(self, plan, /):
        self.calls.append(f"launch {plan.step_id}")
        self.plans[plan.step_id] = plan
        return super().launch(plan)

    def sample(self, ticket, masks, /):
        self.calls.append(f"sample {ticket}{' masked' if masks else ''}")
        super().sample(ticket, masks)
        plan, result = self.plans[ticket], self._results[-1]
        assert result.step_id == ticket, "a later step was launched before this one was sampled"
        at = np.cumsum(result.counts) - 1
        for row, mask in masks.items():
            assert plan.rows[row].needs_mask
            allowed = np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0]
            assert len(allowed), "a mask that allows nothing"
            token_id = int(self.rng.choice(allowed))
            result.token_ids[at[row]] = self._rows[plan.rows[row].slot].last_token = token_id

    def wait(self, ticket, /):
        self.calls.append(f"wait {ticket}")
        if self.watch is not None:
            self.watch()
        return super().wait(ticket)


class Bench:
    def __init__(self, tokenizer, *, depth, **shape):
        options = {"max_num_seqs": 4} | shape
        self.executor = MaskedExecutor(CountingShape(vocab_size=VOCAB_SIZE, depth=depth, **options))
        self.loop = assemble(self.executor, EngineOptions(), tokenizer=tokenizer)

    def submit(self, request):
        recorder = Recorder(request.request_id)
        self.loop.submit(request, recorder)
        return recorder

    def run(self):
        deadline = time.monotonic() + 20
        while self.loop.has_work:
            assert time.monotonic() < deadline, "the loop does not come to rest"
            if not self.loop.step():
                time.sleep(self.loop.stalled_wait_s)


@pytest.fixture
def make_request():
    count = itertools.count()

    def make(*, num_prompt_tokens=3, max_tokens=8, **more):
        return GenerateRequest(
            request_id=f"r{next(count)}",
            prompt_token_ids=pack_ids(range(5, 5 + num_prompt_tokens)),
            stop=StopRules(max_tokens=max_tokens),
            **{"sampling": Sampling(temperature=0.0)} | more,
        )

    return make


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    return path


@pytest.fixture(params=[1, 2])
def make_bench(request, tokenizer):
    made = []

    def make(**options):
        made.append(Bench(tokenizer, **{"depth": request.param} | options))
        return made[-1]

    yield make
    for bench in made:
        bench.loop.close()


def text_of(recorder):
    assert isinstance(recorder.end, Finished), recorder.end
    return decode(recorder.tokens)


def test_outputs_follow_their_grammars_beside_others(make_bench, make_request):
    bench = make_bench()
    plain = bench.submit(make_request(max_tokens=30))
    held = [bench.submit(make_request(max_tokens=60, grammar=REGEX)) for _ in range(6)]
    bench.run()
    assert plain.tokens == [*range(plain.tokens[0], plain.tokens[0] + 30)]
    for recorder in held:
        assert re.fullmatch(REGEX.text, text_of(recorder)), text_of(recorder)
        assert recorder.end.reason == "stop"
        assert recorder.tokens[-1] == EOS
    assert len({text_of(recorder) for recorder in held}) > 1
    assert bench.loop.load().is_idle


@pytest.mark.parametrize("num_threads", [1, 4])
def test_outputs_are_the_same_however_many_threads_fill_masks(
    make_bench, make_request, monkeypatch, num_threads
):
    monkeypatch.setattr(_mask_filler, "_EXPENSIVE_SECONDS", 0.0)
    bench = make_bench(depth=2, max_num_seqs=8)
    filler = bench.loop._grammars._filler
    filler._num_others = num_threads - 1
    grammars = [REGEX, Grammar(kind="regex", text="[a-d]{30}"), Grammar(kind="json_object")]
    held = [
        bench.submit(make_request(max_tokens=60, grammar=grammars[number % 3]))
        for number in range(12)
    ]
    noted_by, filled_by = set(), set()
    fill, note = Constraint.fill_mask, ConstrainedRequest.charge_mask
    monkeypatch.setattr(
        Constraint,
        "fill_mask",
        lambda *arguments: (filled_by.add(threading.get_ident()), fill(*arguments))[1],
    )
    monkeypatch.setattr(
        ConstrainedRequest,
        "charge_mask",
        lambda *arguments: (noted_by.add(threading.get_ident()), note(*arguments))[1],
    )
    bench.run()
    assert bool(filler._threads) == (num_threads > 1)
    assert noted_by == {threading.get_ident()}, "what is no native call stays on the step thread"
    assert len(filled_by) <= num_threads
    for recorder, grammar in zip(held, itertools.cycle(grammars), strict=False):
        if grammar.kind == "regex":
            assert re.fullmatch(grammar.text, text_of(recorder))
        else:
            assert text_of(recorder).startswith("{")
    bench.loop.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("openinfer")]


def test_only_steps_with_masks_wait_for_the_tokens_before_them(make_bench, make_request):
    bench = make_bench(depth=2)
    bench.submit(make_request(max_tokens=6))
    bench.run()
    plain = [call for call in bench.executor.calls if not call.startswith("wait")]
    assert plain[:4] == ["launch 1", "sample 1", "launch 2", "sample 2"]
    assert bench.executor.calls.index("launch 2") < bench.executor.calls.index("wait 1")
    bench.executor.calls.clear()
    bench.submit(make_request(max_tokens=8, grammar=Grammar(kind="regex", text="(x|y){9}")))
    bench.run()
    calls = bench.executor.calls
    masked = [int(call.split()[1]) for call in calls if call.endswith("masked")]
    assert len(masked) >= 8
    for step_id in masked[1:]:
        at = calls.index(f"launch {step_id}")
        assert calls[at : at + 3] == [
            f"launch {step_id}",
            f"wait {step_id - 1}",
            f"sample {step_id} masked",
        ]


def test_once_compiled_a_grammar_runs_on_the_step_thread_alone(make_bench, make_request):
    """At every wait of a step, the compiler's threads are asleep in the queue of their pool."""
    bench = make_bench()
    grammar = Grammar(kind="regex", text="[a-d]{200}")
    held = [bench.submit(make_request(max_tokens=300, grammar=grammar)) for _ in range(4)]
    seen = Counter()

    def watch():
        frames = sys._current_frames()
        for thread in threading.enumerate():
            if all(recorder.tokens for recorder in held) and thread.name.startswith("openinfer-"):
                seen[thread.name, frames[thread.ident].f_code.co_qualname] += 1

    bench.executor.watch = watch
    bench.run()
    assert all(len(text_of(recorder)) == 200 for recorder in held)
    assert {where for _, where in seen} == {"_worker"}, seen
    assert {"openinfer-grammar_0", "openinfer-grammar_1"} <= {name for name, _ in seen}
    assert min(seen.values()) > 50


def test_forced_tokens_save_steps(make_bench, make_request):
    num_steps = {}
    for name, options in {"given": {}, "sampled": {"logprobs": LogprobOptions()}}.items():
        bench = make_bench()
        recorder = bench.submit(make_request(max_tokens=60, grammar=REGEX, **options))
        bench.run()
        assert re.fullmatch(REGEX.text, text_of(recorder)), text_of(recorder)
        assert recorder.end.num_output_tokens == len(recorder.tokens)
        num_steps[name] = bench.loop.load().step_id
    assert num_steps["given"] < num_steps["sampled"]


def test_preempted_requests_go_on_in_their_grammar(make_bench, make_request):
    bench = make_bench(num_blocks=6, tokens_per_block=4, max_model_len=24)
    grammar = Grammar(kind="regex", text="(ab?x|cd){18}")
    # The grammar is compiled beforehand, so that all four requests start in one step.
    bench.submit(make_request(num_prompt_tokens=4, max_tokens=1, grammar=grammar))
    bench.run()
    recorders = [
        bench.submit(make_request(num_prompt_tokens=4, max_tokens=19, grammar=grammar))
        for _ in range(4)
    ]
    bench.run()
    assert bench.loop.load().num_preemptions
    for recorder in recorders:
        assert re.fullmatch("(ab?x|cd)*(a|ab|c)?", text_of(recorder)), text_of(recorder)
        assert len(recorder.tokens) == 19


def test_what_is_refused_says_why_and_disturbs_nobody(make_bench, make_request):
    bench = make_bench()
    schema = Grammar(kind="json_schema", text='{"type": "array", "uniqueItems": true}')
    refused = bench.submit(make_request(grammar=schema))
    other = bench.submit(make_request(max_tokens=4))
    bench.run()
    assert isinstance(refused.end, Rejected)
    assert (refused.end.kind, refused.end.field) == ("invalid", "grammar")
    assert "uniqueItems" in refused.end.message
    assert len(other.tokens) == 4


def test_an_output_prefix_is_replayed(make_bench, make_request):
    bench = make_bench()
    request = make_request(grammar=Grammar(kind="regex", text="(a|b)+xyz"), max_tokens=60)
    ids = [*encode("??"), *encode("abax")]
    resumed = replace(request, prompt_token_ids=pack_ids(ids), num_output_prefix=4)
    broken = replace(resumed, request_id="broken", num_output_prefix=5)
    recorder, refused = bench.submit(resumed), bench.submit(broken)
    bench.run()
    assert text_of(recorder) == "yz"
    assert isinstance(refused.end, Rejected)
    assert "token 63" in refused.end.message


def test_reasoning_comes_before_the_grammar(make_bench, make_request):
    bench = make_bench()
    grammar = replace(REGEX, start_after=pack_ids([40]))
    recorder = bench.submit(make_request(num_prompt_tokens=30, max_tokens=90, grammar=grammar))
    bench.run()
    at = recorder.tokens.index(40)
    assert recorder.tokens[: at + 1] == [*range(recorder.tokens[0], 41)], "the model counts"
    assert re.fullmatch(REGEX.text, decode(recorder.tokens[at + 1 :]))


def test_requests_end_in_every_way_while_their_grammar_is_compiled(
    monkeypatch, tokenizer, make_request
):
    def slow(*arguments, **options):
        time.sleep(0.3)
        raise BackendUnavailable("no vocabulary")

    monkeypatch.setattr("openinfer_engine._assembly.load_backend", slow)
    bench = Bench(tokenizer, depth=2)
    try:
        requests = [make_request(grammar=REGEX) for _ in range(4)]
        late = replace(requests[1], deadline=time.monotonic() + 0.05)
        aborted, expired, unavailable, paused = (
            bench.submit(request) for request in (requests[0], late, *requests[2:])
        )
        for again in (requests[2], replace(requests[2], grammar=None)):
            duplicate = Recorder("duplicate")
            bench.loop.submit(again, duplicate)
            assert duplicate.end.kind == "duplicate"
        assert bench.loop.load().num_waiting == 4
        bench.loop.abort([requests[0].request_id])
        assert aborted.end.reason == "abort"
        bench.loop.control(Pause(mode="wait"), lambda result: None)
        bench.loop.step()
        bench.loop.control(Resume(), lambda result: None)
        bench.run()
        assert isinstance(expired.end, Failed)
        for recorder in (unavailable, paused):
            assert recorder.end.kind == "unsupported"
            assert "no vocabulary" in recorder.end.message
        assert bench.loop.load().is_idle
    finally:
        bench.loop.close()


def test_an_engine_without_a_tokenizer_honours_no_grammar(tmp_path, make_request):
    bench = Bench(tmp_path / "tokenizer.json", depth=1)
    try:
        assert "grammar" not in bench.loop.info.honoured
        recorder = bench.submit(make_request(grammar=REGEX))
        assert (recorder.end.kind, recorder.end.field) == ("unsupported", "grammar")
    finally:
        bench.loop.close()


def test_a_grammar_may_not_take_up_the_step_thread(make_bench, make_request, monkeypatch):
    monkeypatch.setattr("openinfer_engine.loop._constrained_request._SECONDS_A_TOKEN", -0.1)
    bench = make_bench()
    grammar = Grammar(kind="regex", text="(x|y){30}")
    slow = bench.submit(make_request(max_tokens=60, grammar=grammar))
    plain = bench.submit(make_request(max_tokens=20))
    bench.run()
    assert isinstance(slow.end, Failed)
    assert "takes too long" in slow.end.message
    assert 1 <= len(slow.tokens) <= 4
    assert len(plain.tokens) == 20


@pytest.mark.parametrize("text", ['["\\ud800"]', '["\\u0000", 1]', "[" * 100_000])
def test_no_text_of_a_client_ends_the_engine(make_bench, make_request, text):
    bench = make_bench()
    refused = bench.submit(make_request(grammar=Grammar(kind="choice", text=text)))
    bench.run()
    assert (refused.end.kind, refused.end.field) == ("invalid", "grammar")


@pytest.fixture
def may_build(monkeypatch):
    """An event that lets the compiler continue."""
    event = threading.Event()

    def slow(*arguments, **options):
        assert event.wait(10)
        return load_backend(*arguments, **options)

    monkeypatch.setattr("openinfer_engine._assembly.load_backend", slow)
    yield event
    event.set()


def test_a_request_that_only_waits_for_its_grammar_is_work(may_build, make_bench, make_request):
    bench, drained = make_bench(), []
    waiting = bench.submit(make_request(grammar=REGEX, max_tokens=60))
    bench.loop.drain(lambda: drained.append(waiting.end))
    for _ in range(3):
        assert not bench.loop.step()
        assert bench.loop.has_work
    assert not bench.loop.prepare()
    assert not drained
    may_build.set()
    bench.run()
    assert drained == [waiting.end]
    assert re.fullmatch(REGEX.text, text_of(waiting))


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_a_pause_comes_behind_requests_that_wait_for_their_grammar(
    may_build, make_bench, make_request, mode
):
    bench, results = make_bench(), []
    early = bench.submit(make_request(grammar=REGEX, max_tokens=60))
    bench.loop.control(Pause(mode=mode), lambda result: results.append(early.end))
    late = bench.submit(make_request(grammar=REGEX, max_tokens=60))
    bench.loop.step()
    assert bool(results) == (mode == "abort")
    may_build.set()
    while not results:
        bench.loop.step()
    assert results[0].reason == ("stop" if mode == "wait" else "abort")
    assert late.end is None
    bench.loop.control(Resume(), lambda result: None)
    bench.run()
    assert re.fullmatch(REGEX.text, text_of(late))


def test_a_pause_waits_though_somebody_behind_it_has_left(may_build, make_bench, make_request):
    bench, results = make_bench(), []
    early = bench.submit(make_request(grammar=REGEX, max_tokens=60))
    bench.loop.control(Pause(mode="wait"), results.append)
    late = make_request(grammar=REGEX, max_tokens=60)
    left = bench.submit(late)
    bench.loop.abort([late.request_id])
    bench.loop.step()
    assert left.end is not None
    assert not results
    may_build.set()
    while not results:
        bench.loop.step()
    assert early.end.reason == "stop"


def test_an_abort_while_a_grammar_compiles_leaves_nothing(may_build, tokenizer, make_request):
    """The compiler completes after the request has been dropped."""
    bench = Bench(tokenizer, depth=2)
    try:
        requests = [make_request(grammar=REGEX, max_tokens=60) for _ in range(6)]
        recorders = [bench.submit(request) for request in requests]
        bench.loop.abort([request.request_id for request in requests[:5]])
        may_build.set()
        bench.run()
        assert [recorder.end.reason for recorder in recorders] == ["abort"] * 5 + ["stop"]
        assert not bench.loop._grammars.has_constraints
        assert not bench.loop._grammars.is_compiling
    finally:
        may_build.set()
        bench.loop.close()
