"""Traces of the loop over counting executors: every step, phase and request is recorded."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openinfer_contract import (
    AddSpans,
    CommandDone,
    CommandFailed,
    CommandResult,
    Finished,
    StartTrace,
    StopTrace,
)
from openinfer_engine import EngineLoop, EngineOptions, TraceFailed, Tracer, assemble
from openinfer_engine.trace._loop_trace import LoopTrace
from openinfer_scheduler import StepPlan
from openinfer_testing import (
    CountingShape,
    ModelledExecutor,
    ModelledOptions,
    ReadTrace,
    TracedSpan,
    ZeroCostExecutor,
    read_trace,
)
from openinfer_testing.engine import Recorder

Request = Callable[..., Any]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1e-6  # code takes time, too
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Device(ModelledExecutor):
    """An executor that reports its steps to a tracer and counts them."""

    def __init__(self, options: ModelledOptions, clock: Clock) -> None:
        super().__init__(options, clock=clock, sleep=clock.sleep)
        self.tracers: list[Tracer | None] = []
        self.launched: list[StepPlan] = []

    def launch(self, plan: StepPlan, /) -> int:
        self.launched.append(plan)
        return super().launch(plan)

    def trace(self, tracer: Tracer | None, /) -> None:
        self.tracers.append(tracer)


class Bench:
    def __init__(self, shape: CountingShape, engine: EngineOptions, **options: Any) -> None:
        self.clock = Clock()
        modelled = ModelledOptions(shape=shape, **{"step_s": 0.01} | options)
        self.executor = Device(modelled, self.clock)
        self.loop = assemble(self.executor, engine, clock=self.clock)

    def submit(self, request: Any) -> Recorder:
        recorder = Recorder(request.request_id)
        self.loop.submit(request, recorder)
        return recorder

    def control(self, command: Any) -> CommandResult:
        results: list[CommandResult] = []
        self.loop.control(command, results.append)
        self.run(until=lambda: bool(results))
        (result,) = results
        return result

    def run(self, max_steps: int = 10_000, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(max_steps):
            if until() or not self.loop.has_work:
                return
            self.loop.step()
        raise AssertionError("the loop does not come to rest")

    def stop(self) -> ReadTrace:
        result = self.control(StopTrace())
        assert isinstance(result, CommandDone), result
        return read_trace(result.message)


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(
        *, depth: int = 2, shape: dict[str, Any] | None = None, from_start: bool = True, **more: Any
    ) -> Bench:
        engine = EngineOptions(
            trace_file=str(tmp_path / "trace.json") if from_start else None,
            trace_dir=str(tmp_path),
            enable_prefix_caching=False,
        )
        benches.append(Bench(CountingShape(depth=depth, **shape or {}), engine, **more))
        return benches[-1]

    yield make
    for bench in benches:
        bench.loop.close()


Make = Callable[..., Bench]


def steps_of(trace: ReadTrace) -> list[TracedSpan]:
    return sorted(
        (span for span in trace.on("engine steps") if not span.depth),
        key=lambda span: int(span.args["step"]),
    )


def phases_of(trace: ReadTrace, step: TracedSpan) -> list[str]:
    inner = [s for s in trace.spans if s.depth == 1 and s.track == step.track and step.holds(s)]
    assert inner[0].begin == step.begin
    assert inner[-1].end == step.end
    return [span.name for span in inner]


@pytest.mark.parametrize("depth", [1, 2])
def test_every_step_is_there_with_its_phases(
    make_bench: Make, make_request: Request, depth: int
) -> None:
    bench = make_bench(depth=depth)
    for i in range(6):
        bench.submit(make_request(range(1, 40), request_id=f"r{i}", max_tokens=5 + i))
    bench.run()
    trace = bench.stop()
    steps, plans = steps_of(trace), bench.executor.launched
    assert [step.args["step"] for step in steps] == [plan.step_id for plan in plans]
    for step, plan in zip(steps, plans, strict=True):
        assert step.args["decode_rows"] + step.args["prefill_rows"] == len(plan.rows)
        is_prefill = [row.token_ids is not None for row in plan.rows]
        assert step.args["prefill_rows"] == sum(is_prefill)
        expected = "mixed" if any(is_prefill) else "decode"
        expected = "prefill" if is_prefill and all(is_prefill) else expected
        assert step.name == (expected if plan.rows else "no rows")
        assert phases_of(trace, step) == ["plan", "launch", "sample", "wait", "apply"]
    assert {step.track for step in steps} == (
        {"engine steps"} if depth == 1 else {"engine steps, 1 of 2", "engine steps, 2 of 2"}
    )
    overlaps = [one for one, two in itertools.pairwise(steps) if two.begin < one.end]
    assert bool(overlaps) == (depth == 2)
    phases = sorted((s for s in trace.on("engine steps") if s.depth), key=lambda s: s.begin)
    for one, two in itertools.pairwise(phases):
        assert one.end <= two.begin, "one thread does one thing at a time"
    waits = sum(span.end - span.begin for span in phases if span.name == "wait")
    assert waits == pytest.approx(1e4 * len(plans), rel=0.1)
    assert bench.executor.tracers[-1] is None


@pytest.mark.parametrize("depth", [1, 2])
def test_every_request_is_there_from_arrival_to_end(
    make_bench: Make, make_request: Request, depth: int
) -> None:
    bench = make_bench(depth=depth, shape={"max_num_batched_tokens": 64, "max_num_seqs": 2})
    arrival = bench.clock.now - 0.25
    for i in range(4):
        bench.submit(make_request(range(1, 151), request_id=f"r{i}", max_tokens=4, arrival=arrival))
    bench.run()
    trace = bench.stop()
    for i in range(4):
        spans = trace.on(f"engine request r{i}")
        whole, *parts = [span for span in spans if span.depth < 2]
        assert whole.name == "request"
        assert whole.begin == pytest.approx(arrival * 1e6, abs=1)
        expected = {"prompt_tokens": 150, "max_tokens": 4, "end": "length", "output_tokens": 4}
        assert expected.items() <= whole.args.items()
        assert [part.name for part in parts] == ["queued", "prefill", "decode"]
        assert parts[0].begin == whole.begin
        assert parts[-1].end == whole.end
        for one, two in itertools.pairwise(parts):
            assert one.end == two.begin
        chunks = [span for span in spans if span.depth == 2]
        assert {chunk.name for chunk in chunks} == {"chunk"}
        assert len(chunks) >= 3
        assert sum(chunk.args["tokens"] for chunk in chunks) == 150
        for one, two in itertools.pairwise(chunks):
            assert one.end <= two.begin
        assert (f"engine request r{i}", "first token", parts[1].end) in trace.notes
    assert len(trace.notes) == 4
    queued = [trace.on(f"engine request r{i}")[1] for i in range(4)]
    assert queued[3].end > queued[0].end, "two rows are not enough for four"


def test_whose_request_it_is_stands_beside_it(make_bench: Make, make_request: Request) -> None:
    bench = make_bench()
    named = {"session_id": "talk", "trace_parent": "00-0af7-b7ad-01"}
    bench.submit(make_request([5], request_id="named", **named))
    bench.submit(make_request([5], request_id="bare"))
    bench.run()
    trace = bench.stop()
    args = trace.on("engine request named")[0].args
    assert (args["session_id"], args["traceparent"]) == ("talk", "00-0af7-b7ad-01")
    assert not {"session_id", "traceparent"} & trace.on("engine request bare")[0].args.keys()


def test_a_preempted_request_is_recomputed(make_bench: Make, make_request: Request) -> None:
    bench = make_bench(shape={"num_blocks": 12, "max_num_seqs": 4, "max_model_len": 192})
    recorders = [
        bench.submit(make_request(range(1, 33), request_id=f"r{i}", max_tokens=60))
        for i in range(3)
    ]
    bench.run()
    trace = bench.stop()
    preempted = 0
    for recorder in recorders:
        assert isinstance(recorder.end, Finished)
        spans = trace.on(f"engine request {recorder.request_id}")
        names = [span.name for span in spans if span.depth == 1]
        count = recorder.end.num_preemptions
        assert names == ["queued", "prefill", "decode"] + ["recompute", "decode"] * count
        assert spans[0].args["preemptions"] == count
        preempted += count
    assert preempted
    assert len(trace.notes) == 3, "the first token is the first one"


def test_counters_follow_what_is_held(make_bench: Make, make_request: Request) -> None:
    bench = make_bench(shape={"max_num_seqs": 2})
    for i in range(3):
        bench.submit(make_request(range(1, 40), request_id=f"r{i}", max_tokens=40))
    bench.run()
    trace = bench.stop()
    requests = [values for _, values in trace.counters["requests"]]
    assert {"running": 2, "waiting": 1} in requests
    blocks = [values["held"] for _, values in trace.counters["KV blocks"]]
    assert max(blocks) >= 2 * 4
    assert requests[-1] == {"running": 0, "waiting": 0}
    assert blocks[-1] == 0
    times = [at for at, _ in trace.counters["requests"]]
    assert times == sorted(times)


def test_failures_are_told(make_bench: Make, make_request: Request) -> None:
    bench = make_bench(step_failed_token=666)
    bench.submit(make_request([666], request_id="bad"))
    bench.run()
    bench.submit(make_request([5], request_id="good"))
    bench.run()
    trace = bench.stop()
    failed = [step for step in steps_of(trace) if "failure" in step.args]
    assert failed
    assert {step.args["failure"] for step in failed} == {"the modelled step has failed"}
    assert "the modelled step has failed" in trace.on("engine request bad")[0].args["end"]
    assert trace.on("engine request good")[0].args["end"] == "length"


def test_started_and_stopped_between_steps(make_bench: Make, make_request: Request) -> None:
    bench = make_bench(from_start=False)
    assert isinstance(bench.control(StopTrace()), CommandFailed)
    early = bench.submit(make_request(request_id="early", max_tokens=30))
    for _ in range(5):
        bench.loop.step()
    first = len(bench.executor.launched)
    started = bench.control(StartTrace())
    assert isinstance(started, CommandDone)
    assert started.load is not None
    assert started.load.is_tracing
    again = bench.control(StartTrace())
    assert isinstance(again, CommandFailed)
    assert again.kind == "refused"
    assert started.message in again.message
    bench.submit(make_request(request_id="inside", max_tokens=3))
    late = bench.submit(make_request(request_id="late", max_tokens=40))
    bench.run(until=lambda: early.end is not None)
    last = len(bench.executor.launched)
    trace = bench.stop()
    assert not bench.loop.is_tracing
    bench.run()
    assert isinstance(late.end, Finished)
    traced = [plan.step_id for plan in bench.executor.launched[first:last]]
    assert [step.args["step"] for step in steps_of(trace)] == traced
    assert not trace.on("engine request early"), "it came before the trace"
    assert trace.on("engine request inside")[0].args["end"] == "length"
    assert trace.on("engine request late")[0].args["end"] == "after the trace"
    second = bench.control(StartTrace())
    assert isinstance(second, CommandDone)
    assert second.message != started.message


def test_a_trace_needs_a_place(make_request: Request, tmp_path: Path) -> None:
    bench = Bench(CountingShape(), EngineOptions())
    result = bench.control(StartTrace())
    assert isinstance(result, CommandFailed)
    assert "--trace-dir" in result.message
    result = bench.control(StartTrace(path=str(tmp_path / "no" / "t.json")))
    assert isinstance(result, CommandFailed)
    assert "No such file" in result.message
    assert not bench.loop.is_tracing
    bench.loop.close()
    executor = ZeroCostExecutor()
    with pytest.raises(TraceFailed, match="No such file"):
        assemble(executor, EngineOptions(trace_file=str(tmp_path / "no" / "t.json")))
    with pytest.raises(TraceFailed, match="has no kernels to trace"):
        assemble(
            ZeroCostExecutor(),
            EngineOptions(trace_file=str(tmp_path / "t.json"), trace_kernels=True),
        )
    assert not (tmp_path / "t.json").exists()
    with pytest.raises(TraceFailed, match="no, does not exist"):
        assemble(ZeroCostExecutor(), EngineOptions(trace_dir=str(tmp_path / "no")))
    with pytest.raises(ValueError, match="trace_kernels"):
        EngineOptions(trace_kernels=True)
    with pytest.raises(ValueError, match="trace_max_bytes"):
        EngineOptions(trace_max_bytes=10)


def test_a_disk_that_fails_harms_nobody(
    make_bench: Make, make_request: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    first = bench.submit(make_request(request_id="first", max_tokens=5))
    bench.run()

    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        recorder = bench.submit(make_request(request_id="r", max_tokens=300))
        bench.run()
    assert isinstance(first.end, Finished)
    assert isinstance(recorder.end, Finished)
    assert not bench.loop.is_tracing
    assert bench.executor.tracers[-1] is None
    stopped = bench.control(StopTrace())
    assert isinstance(stopped, CommandFailed)
    assert "No space left on device" in stopped.message
    restarted = bench.control(StartTrace())
    assert isinstance(restarted, CommandDone)
    bench.submit(make_request(request_id="later", max_tokens=3))
    bench.run()
    assert bench.stop().on("engine request later")


def test_clients_add_what_they_did(make_bench: Make) -> None:
    bench = make_bench()
    spans = (("request", 99.0, 101.5), ("parse", 99.0, 99.5), ("engine", 99.5, 101.5))
    added = AddSpans("r7", 4711, "front", spans)
    assert isinstance(bench.control(added), CommandDone)
    trace = bench.stop()
    found = trace.on("front client r7")
    assert [(s.name, s.begin / 1e6, s.end / 1e6) for s in found] == list(spans)
    assert [s.depth for s in found] == [0, 1, 1]
    assert isinstance(bench.control(added), CommandDone), "without a trace nothing happens"


def test_a_closed_loop_leaves_a_whole_trace(
    make_bench: Make, make_request: Request, tmp_path: Path
) -> None:
    bench = make_bench()
    bench.submit(make_request(max_tokens=100))
    for _ in range(9):
        bench.loop.step()
    bench.loop.close()
    trace = read_trace(tmp_path / "trace.json")
    assert len(steps_of(trace)) == 8
    assert trace.on("engine request r")[0].args["end"] == "after the trace"


class Counting(LoopTrace):
    """Counts the loop's reports while there is no trace."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __getattribute__(self, name: str) -> Any:
        if name in vars(LoopTrace):
            self.num_calls += 1
        return super().__getattribute__(name)


@pytest.mark.timed
def test_a_trace_that_is_off_costs_next_to_nothing(make_request: Request) -> None:
    """Without a trace, a step makes seven calls that do nothing, in under three microseconds."""
    shape = CountingShape(max_num_seqs=8)
    loop = assemble(ZeroCostExecutor(shape), EngineOptions())
    counting = Counting()
    loop._traces.steps = counting
    for i in range(8):
        loop.submit(make_request(request_id=str(i), max_tokens=200), lambda event: None)
    num_steps = 0
    while loop.has_work:
        loop.step()
        num_steps += 1
    loop.close()
    num_submitted_and_ended = 2 * 8
    assert counting.num_calls - num_submitted_and_ended <= 6 * num_steps
    off, num = LoopTrace(), 20_000
    least = min(_seconds(lambda: off.mark(1, "launch"), num) for _ in range(5))
    assert 7 * least < 3e-6


def _seconds(call: Callable[[], object], num: int) -> float:
    begun = time.perf_counter()
    for _ in range(num):
        call()
    return (time.perf_counter() - begun) / num


def _seconds_per_step(loop: EngineLoop, make_request: Request) -> float:
    """Returns the CPU time of all threads: the minimum of several runs with eight rows."""
    best = 1.0
    for n in range(8):
        for i in range(8):
            request = make_request(request_id=f"{n}.{i}", max_tokens=300)
            loop.submit(request, lambda event: None)
        num, begun = 0, time.process_time()
        while loop.has_work:
            loop.step()
            num += 1
        best = min(best, (time.process_time() - begun) / num)
    return best


def test_a_trace_that_is_on_costs_little(make_request: Request, tmp_path: Path) -> None:
    """The cost of a trace includes writing it and does not grow with the decoding rows."""
    shape = CountingShape(max_num_seqs=8)
    loop = assemble(ZeroCostExecutor(shape), EngineOptions(trace_dir=str(tmp_path)))
    off = _seconds_per_step(loop, make_request)
    results: list[CommandResult] = []
    loop.control(StartTrace(), results.append)
    loop.step()
    on = _seconds_per_step(loop, make_request)
    loop.control(StopTrace(), results.append)
    loop.step()
    loop.close()
    assert all(isinstance(result, CommandDone) for result in results)
    print(f"a step: {off * 1e6:.1f} us without a trace, {on * 1e6:.1f} us with one")
    assert on - off < 60e-6
