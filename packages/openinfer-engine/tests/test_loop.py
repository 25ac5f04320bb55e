"""The loop alone, on virtual time, without threads and sockets."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from openinfer_contract import (
    Command,
    CommandDone,
    CommandFailed,
    CommandResult,
    Failed,
    Finished,
    GetLoad,
    Pause,
    Rejected,
    ResetPrefixCache,
    Resume,
    Sleep,
    StartTrace,
    Wake,
    pack_ids,
)
from openinfer_engine import EngineOptions, ExecutorDead, assemble
from openinfer_scheduler import StepPlan, StepResult
from openinfer_testing import CountingShape, ModelledExecutor, ModelledOptions
from openinfer_testing.engine import Recorder

Request = Callable[..., Any]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Diary(ModelledExecutor):
    """An executor that records every call and the number of steps in flight."""

    def __init__(self, options: ModelledOptions, clock: Clock) -> None:
        super().__init__(options, clock=clock, sleep=clock.sleep)
        self.calls: list[str] = []
        self.plans: list[StepPlan] = []
        self.num_in_flight = 0
        self.is_closed = False

    def launch(self, plan: StepPlan, /) -> int:
        self.num_in_flight += 1
        self.calls.append(f"launch {plan.step_id}")
        self.plans.append(plan)
        return super().launch(plan)

    def sample(self, ticket: int, masks: Any, /) -> None:
        self.calls.append(f"sample {ticket}")
        super().sample(ticket, masks)

    def wait(self, ticket: int, /) -> StepResult:
        self.calls.append(f"wait {ticket}")
        self.num_in_flight -= 1
        return super().wait(ticket)

    def prepare(self) -> bool:
        assert self.num_in_flight == 0
        self.calls.append("prepare")
        return self.calls.count("prepare") < 3

    def control(self, command: Command, /) -> CommandResult:
        assert self.num_in_flight == 0, "a command runs with a step in flight"
        self.calls.append("control")
        return super().control(command)

    def close(self) -> None:
        self.is_closed = True
        super().close()


class Bench:
    def __init__(self, options: ModelledOptions, engine: EngineOptions) -> None:
        self.clock = Clock()
        self.executor = Diary(options, self.clock)
        self.loop = assemble(self.executor, engine, clock=self.clock)
        self.results: list[CommandResult] = []

    def submit(self, request: Any) -> Recorder:
        recorder = Recorder(request.request_id)
        self.loop.submit(request, recorder)
        return recorder

    def control(self, command: Command) -> None:
        self.loop.control(command, self.results.append)

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.loop.has_work or not self.loop.step():
                return
        raise AssertionError("the loop does not come to rest")


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    def make(
        *,
        max_queued_requests: int = 64,
        max_queued_tokens: int = 100_000,
        depth: int = 2,
        max_num_seqs: int = 4,
        scheduling_policy: str = "fcfs",
        **options: Any,
    ) -> Bench:
        shape = CountingShape(depth=depth, max_num_seqs=max_num_seqs)
        return Bench(
            ModelledOptions(shape=shape, **{"step_s": 0.01} | options),
            EngineOptions(
                max_queued_requests=max_queued_requests,
                max_queued_tokens=max_queued_tokens,
                scheduling_policy=scheduling_policy,
            ),
        )

    return make


Make = Callable[..., Bench]


@pytest.mark.parametrize("order", ["1 / 0", "sequences[1:]"])
def test_a_policy_at_fault_costs_nobody_a_request(
    make_bench: Make,
    make_request: Request,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    order: str,
) -> None:
    module = f"at_fault_{len(order)}"
    (tmp_path / f"{module}.py").write_text(
        "from openinfer_scheduler import FCFS\nclass Policy(FCFS):\n"
        f"    def order(self, sequences, now):\n        return {order}\n"
    )
    monkeypatch.chdir(tmp_path)
    bench = make_bench(scheduling_policy=f"{module}:Policy")
    recorders = [bench.submit(make_request(request_id=f"r{n}", max_tokens=4)) for n in range(6)]
    bench.run()
    assert all(isinstance(recorder.end, Finished) for recorder in recorders)
    (record,) = caplog.records
    assert f"{module}:Policy: order()" in record.getMessage()
    assert bench.loop.load().is_idle


def test_depth_two_launches_ahead(make_bench: Make, make_request: Request) -> None:
    bench = make_bench()
    recorder = bench.submit(make_request(max_tokens=4))
    bench.run()
    ids = [int(call.split()[1]) for call in bench.executor.calls if call.startswith("launch")]
    first = ids[0]
    assert bench.executor.calls[:7] == [
        f"launch {first}",
        f"sample {first}",
        f"launch {first + 1}",
        f"sample {first + 1}",
        f"wait {first}",
        f"launch {first + 2}",
        f"sample {first + 2}",
    ]
    assert recorder.tokens == [8, 9, 10, 11]
    assert bench.loop.load().is_idle


def test_depth_one_waits_at_once(make_bench: Make, make_request: Request) -> None:
    bench = make_bench(depth=1)
    recorder = bench.submit(make_request(max_tokens=3))
    bench.run()
    verbs = [call.split()[0] for call in bench.executor.calls]
    assert verbs[:6] == ["launch", "sample", "wait"] * 2
    assert recorder.tokens == [8, 9, 10]


def test_commands_run_with_nothing_in_flight_and_in_order(
    make_bench: Make, make_request: Request
) -> None:
    bench = make_bench()
    recorder = bench.submit(make_request(max_tokens=20))
    for _ in range(4):
        bench.loop.step()
    assert bench.executor.num_in_flight == 1
    bench.control(Sleep())
    bench.control(ResetPrefixCache())
    assert not bench.results
    bench.run()
    assert "control" in bench.executor.calls
    assert [type(result) for result in bench.results] == [CommandDone, CommandDone]
    assert isinstance(recorder.end, Finished)


def quiet_bench(make_bench: Make, make_request: Request) -> tuple[Bench, Recorder]:
    """Runs a request until it decodes, with many steps left that only decode."""
    bench = make_bench()
    recorder = bench.submit(make_request(max_tokens=40))
    while bench.loop.num_skippable_steps < 5:
        bench.loop.step()
    return bench, recorder


def test_steps_that_a_host_has_run_go_on_where_they_end(
    make_bench: Make, make_request: Request
) -> None:
    bench, recorder = quiet_bench(make_bench, make_request)
    executor, num_known = bench.executor, len(recorder.tokens)
    step_id = bench.loop.step_id
    newest = executor.plans[-1]
    tokens = []
    for number in range(1, 6):
        executor.launch(dataclasses.replace(newest, step_id=newest.step_id + number, ends=()))
        executor.sample(newest.step_id + number, {})
        tokens += executor.wait(newest.step_id + number - 1).token_ids.tolist()
    bench.loop.skip_decode_steps([pack_ids(tokens)], 5)
    assert bench.loop.step_id == step_id + 5
    assert recorder.tokens[num_known:] == tokens
    bench.run()
    assert recorder.tokens == list(range(8, 48))
    assert bench.loop.load().is_idle


@pytest.mark.parametrize("disturb", ["pause", "drain", "trace", "request"])
def test_a_loop_that_somebody_wants_something_of_is_not_quiet(
    make_bench: Make, make_request: Request, tmp_path: Path, disturb: str
) -> None:
    bench, _ = quiet_bench(make_bench, make_request)
    if disturb == "pause":
        bench.control(Pause())
    elif disturb == "drain":
        bench.loop.drain(lambda: None)
    elif disturb == "trace":
        bench.loop.start_trace(StartTrace(str(tmp_path / "trace.json")))
    else:
        bench.submit(make_request(request_id="late", max_tokens=2))
    assert bench.loop.num_skippable_steps == 0
    bench.run()
    bench.loop.close()


def test_get_load_does_not_drain_the_pipeline(make_bench: Make, make_request: Request) -> None:
    bench = make_bench()
    bench.submit(make_request(max_tokens=20))
    bench.loop.step()
    bench.control(GetLoad())
    (result,) = bench.results
    assert isinstance(result, CommandDone)
    assert result.load is not None
    assert result.load.num_running == 1
    assert bench.executor.num_in_flight == 1


def test_unknown_commands_fail_at_once(make_bench: Make) -> None:
    bench = make_bench()
    bench.control(Wake())
    (result,) = bench.results
    assert isinstance(result, CommandFailed)
    assert (result.kind, "wake" in result.message) == ("unsupported", True)


def test_deadlines_end_waiting_and_running_requests(
    make_bench: Make, make_request: Request
) -> None:
    bench = make_bench(max_num_seqs=1)
    running = bench.submit(make_request(request_id="a", max_tokens=900, deadline=100.5))
    waiting = bench.submit(make_request(request_id="b", max_tokens=900, deadline=100.2))
    bench.run()
    assert isinstance(running.end, Failed)
    assert isinstance(waiting.end, Failed)
    assert 100.5 <= bench.clock.now < 100.6
    assert 40 < len(running.tokens) < 60
    assert bench.loop.load().is_idle


def test_a_frozen_request_still_has_its_deadline(make_bench: Make, make_request: Request) -> None:
    bench = make_bench()
    recorder = bench.submit(make_request(max_tokens=900, deadline=101.0))
    bench.loop.step()
    bench.control(Pause(mode="keep"))
    bench.run()
    assert isinstance(bench.results[0], CommandDone)
    assert recorder.end is None
    bench.clock.now = 102.0
    bench.loop.step()
    assert isinstance(recorder.end, Failed)


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_what_comes_after_a_pause_is_held_even_with_steps_in_flight(
    mode: Any, make_bench: Make, make_request: Request
) -> None:
    bench = make_bench()
    live = bench.submit(make_request(request_id="live", max_tokens=50))
    for _ in range(3):
        bench.loop.step()
    assert bench.executor.num_in_flight
    bench.control(Pause(mode=mode))
    late = bench.submit(make_request(request_id="late"))
    bench.run()
    assert isinstance(live.end, Finished)
    assert bench.loop.load().is_paused
    assert not late.events, "it came after the pause"
    bench.control(Resume())
    bench.run()
    assert late.tokens == list(range(8, 16))


def test_a_held_request_still_has_its_deadline(make_bench: Make, make_request: Request) -> None:
    bench = make_bench()
    live = bench.submit(make_request(request_id="live", max_tokens=900))
    bench.loop.step()
    bench.control(Pause(mode="wait"))
    held = bench.submit(make_request(request_id="held", deadline=bench.clock.now + 0.1))
    for _ in range(40):
        bench.loop.step()
    assert live.end is None
    assert isinstance(held.end, Failed)
    assert "deadline" in held.end.message


def test_held_requests_are_bounded(make_bench: Make, make_request: Request) -> None:
    bench = make_bench(max_queued_requests=2)
    live = bench.submit(make_request(request_id="live", max_tokens=50))
    bench.loop.step()
    bench.control(Pause(mode="wait"))
    for _ in range(4):
        bench.loop.step()
    held = [bench.submit(make_request([i + 1], request_id=f"h{i}")) for i in range(3)]
    again = bench.submit(make_request(request_id="h0"))
    assert isinstance(held[2].end, Rejected)
    assert held[2].end.kind == "overloaded"
    assert isinstance(again.end, Rejected)
    assert again.end.kind == "duplicate"
    assert bench.loop.load().num_waiting == 2
    bench.run()
    assert isinstance(live.end, Finished)
    assert bench.loop.load().is_paused
    bench.control(Resume())
    bench.run()
    assert [type(recorder.end) for recorder in held[:2]] == [Finished, Finished]
    assert bench.loop.load().num_rejected == 2


def test_a_prompt_that_never_has_room_is_held_alone(
    make_bench: Make, make_request: Request
) -> None:
    bench = make_bench(max_queued_tokens=4)
    bench.submit(make_request(request_id="live", max_tokens=50))
    bench.loop.step()
    bench.control(Pause(mode="wait"))
    long = bench.submit(make_request([1, 2, 3, 4, 5], request_id="long"))
    other = bench.submit(make_request([6], request_id="other"))
    assert long.end is None
    assert isinstance(other.end, Rejected)
    assert other.end.kind == "overloaded"
    bench.run()
    bench.control(Resume())
    bench.run()
    assert isinstance(long.end, Finished)


def test_draining_ends_a_pause_and_refuses_another(make_bench: Make, make_request: Request) -> None:
    bench = make_bench()
    recorder = bench.submit(make_request(max_tokens=30))
    bench.loop.step()
    bench.control(Pause(mode="keep"))
    bench.run()
    drained: list[bool] = []
    bench.loop.drain(lambda: drained.append(True))
    bench.control(Pause(mode="keep"))
    assert not drained
    bench.run()
    assert drained == [True]
    assert isinstance(recorder.end, Finished)
    assert isinstance(bench.results[1], CommandFailed)


def test_an_idle_engine_drains_at_once(make_bench: Make) -> None:
    bench = make_bench()
    drained: list[bool] = []
    bench.loop.drain(lambda: drained.append(True))
    bench.run()
    assert drained == [True]


def test_a_failed_step_leaves_later_steps_sound(make_bench: Make, make_request: Request) -> None:
    bench = make_bench(step_failed_token=993)
    touched = bench.submit(make_request([993, 1], request_id="bad"))
    bench.loop.step()
    later = bench.submit(make_request(request_id="later", max_tokens=9))
    bench.run()
    assert isinstance(touched.end, Failed)
    assert isinstance(later.end, Finished | Failed)
    after = bench.submit(make_request(request_id="after", max_tokens=9))
    bench.run()
    assert after.tokens == list(range(8, 17))
    assert bench.loop.load().is_idle


def test_a_dead_executor_fails_everyone(make_bench: Make, make_request: Request) -> None:
    bench = make_bench(dead_token=993, max_num_seqs=1)
    deadly = bench.submit(make_request([993, 1], request_id="bad"))
    queued = bench.submit(make_request(request_id="queued"))
    with pytest.raises(ExecutorDead) as caught:
        bench.run()
    reason = bench.loop.die(caught.value)
    late = bench.submit(make_request(request_id="late"))
    for recorder in (deadly, queued, late):
        recorder.check()
        assert isinstance(recorder.end, Failed)
        assert recorder.end.is_retryable
        assert reason in recorder.end.message
    bench.loop.abort(["bad", "queued", "late"])
    bench.loop.close()
    assert bench.executor.is_closed


def test_a_defect_fails_everyone_too(make_bench: Make, make_request: Request) -> None:
    bench = make_bench()
    recorder = bench.submit(make_request())
    reason = bench.loop.die(KeyError("oops"))
    bench.loop.abort(["r"])
    assert isinstance(recorder.end, Failed)
    assert "KeyError" in reason


def test_an_aborted_id_may_come_back_with_steps_in_flight(
    make_bench: Make, make_request: Request
) -> None:
    bench = make_bench()
    first = bench.submit(make_request(max_tokens=50))
    for _ in range(5):
        bench.loop.step()
    assert bench.executor.num_in_flight == 1
    bench.loop.abort(["r"])
    second = bench.submit(make_request([50], max_tokens=3))
    bench.run()
    assert isinstance(first.end, Finished)
    assert first.end.reason == "abort"
    assert second.tokens == [51, 52, 53]
    assert bench.loop.load().is_idle


def test_rejections_are_counted(make_bench: Make, make_request: Request) -> None:
    bench = make_bench()
    bad = replace(make_request(), prompt_token_ids=b"")
    assert isinstance(bench.submit(bad).end, Rejected)
    assert bench.loop.load().num_rejected == 1


def test_the_executor_prepares_while_nothing_is_asked(
    make_bench: Callable[..., Bench], make_request: Any
) -> None:
    bench = make_bench()
    assert bench.loop.prepare()
    bench.submit(make_request(max_tokens=3))
    assert not bench.loop.prepare()
    bench.run()
    assert "prepare" not in bench.executor.calls[1:]
    assert bench.loop.prepare()
    assert not bench.loop.prepare()
