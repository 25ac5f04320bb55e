import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openinfer_contract import (
    CommandDone,
    EngineDead,
    EventBuffer,
    Failed,
    GetLoad,
    Rejected,
    TokenEvent,
    Wake,
    unpack_ids,
)
from openinfer_engine import EngineOptions, InProcessEngine, TraceFailed
from openinfer_grammar import BackendUnavailable
from openinfer_scheduler import UnknownPolicy
from openinfer_testing import ModelledExecutor, ModelledOptions, ZeroCostExecutor
from openinfer_testing.engine import Recorder

Request = Callable[..., Any]


@pytest.fixture
def engine() -> Any:
    engine = InProcessEngine(ZeroCostExecutor, model_line="counting")
    yield engine
    engine.close()


def test_threads_may_read_and_submit(engine: InProcessEngine, make_request: Request) -> None:
    outputs: dict[int, list[int]] = {}

    def generate(i: int) -> None:
        buffer = EventBuffer()
        engine.submit(make_request([10 * i], request_id=f"r{i}", max_tokens=5), buffer)
        tokens: list[int] = []
        while True:
            event = buffer.get_blocking(10)
            tokens += unpack_ids(event.token_ids)
            if event.end is not None:
                break
        outputs[i] = tokens

    threads = [threading.Thread(target=generate, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {i: [10 * i + j for j in range(1, 6)] for i in range(12)}


def test_a_failing_factory_raises_here() -> None:
    def factory() -> ZeroCostExecutor:
        raise RuntimeError("no device")

    with pytest.raises(RuntimeError, match="no device"):
        InProcessEngine(factory)


def test_the_executor_lives_on_the_step_thread() -> None:
    names = []

    class Executor(ZeroCostExecutor):
        def __init__(self) -> None:
            super().__init__()
            names.append(threading.current_thread().name)

        def close(self) -> None:
            names.append(threading.current_thread().name)

    InProcessEngine(Executor).close()
    assert names == ["openinfer-step", "openinfer-step"]


def test_a_failing_sink_costs_only_its_request(
    engine: InProcessEngine, make_request: Request, caplog: pytest.LogCaptureFixture
) -> None:
    def sink(event: TokenEvent) -> None:
        raise RuntimeError("full")

    engine.submit(make_request(request_id="bad", max_tokens=900), sink)
    buffer = EventBuffer()
    engine.submit(make_request(), buffer)
    while buffer.get_blocking(10).end is None:
        pass
    assert "the sink of request 'bad' has failed" in caplog.text
    result = engine.control(GetLoad()).result(10)
    assert isinstance(result, CommandDone)
    assert result.load is not None
    assert result.load.num_output_tokens < 900


def test_a_breach_of_the_grammar_kills_the_engine(
    make_request: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = InProcessEngine(ZeroCostExecutor)
    monkeypatch.setattr(engine._loop._scheduler, "abort", lambda ids, now: [("r", TokenEvent())])
    recorder = Recorder("r")
    engine.submit(make_request(max_tokens=1000), recorder)
    engine.abort(["r"])
    engine._thread.join(10)
    assert isinstance(recorder.end, Failed)
    with pytest.raises(EngineDead, match="StreamOrderError"):
        engine.submit(make_request(), recorder)


def test_a_waiting_crowd_is_bounded(make_request: Request) -> None:
    engine = InProcessEngine(
        lambda: ModelledExecutor(ModelledOptions(step_s=0.2)), EngineOptions(max_queued_requests=3)
    )
    recorders = [Recorder(f"r{i}") for i in range(40)]
    for recorder in recorders:
        engine.submit(make_request(request_id=recorder.request_id, max_tokens=1), recorder)
    rejected = [r for r in recorders if isinstance(r.end, Rejected)]
    assert rejected
    engine.close()
    assert all(recorder.end is not None for recorder in recorders)


def test_death_fails_what_waits(make_request: Request) -> None:
    engine = InProcessEngine(lambda: ModelledExecutor(ModelledOptions(step_s=0.05, dead_token=993)))
    deadly, other = Recorder("deadly"), Recorder("other")
    engine.submit(make_request([993, 1], request_id="deadly"), deadly)
    engine.submit(make_request(request_id="other"), other)
    engine._thread.join(10)
    assert isinstance(deadly.end, Failed)
    assert isinstance(other.end, Failed)
    with pytest.raises(EngineDead, match="the modelled device is lost"):
        engine.submit(make_request(), other)
    assert isinstance(engine.control(GetLoad()).exception(5), EngineDead)
    assert isinstance(engine.drain().exception(5), EngineDead)
    engine.abort(["other"])
    engine.close()


def test_it_may_be_closed_from_a_sink(make_request: Request) -> None:
    engine = InProcessEngine(ZeroCostExecutor)
    engine.submit(make_request(max_tokens=900), lambda event: engine.close())
    engine._thread.join(10)
    assert not engine._thread.is_alive()


@pytest.mark.timed
def test_idle_costs_nothing_and_load_settles(
    engine: InProcessEngine, make_request: Request
) -> None:
    recorder = Recorder("r")
    engine.submit(make_request(), recorder)
    deadline = time.monotonic() + 5
    while engine.load().num_finished != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05
    assert engine.info.model_line == "counting"


def test_what_is_asked_while_it_closes_is_answered_or_fails(make_request: Request) -> None:
    executor = ModelledExecutor(ModelledOptions(step_s=0.3))
    engine = InProcessEngine(lambda: executor)
    engine.submit(make_request(), Recorder("r"))
    time.sleep(0.1)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while engine._tasks.empty() and closing.is_alive():
        time.sleep(0.001)
    futures = [engine.control(GetLoad()), engine.control(Wake()), engine.drain()]
    closing.join()
    for future in futures:
        assert future.exception(5) is None or isinstance(future.exception(), EngineDead)
    assert executor._is_closed


def test_an_executor_without_an_engine_is_closed(tmp_path: Path) -> None:
    executor = ZeroCostExecutor()
    options = EngineOptions(trace_file=str(tmp_path / "t.json"), trace_kernels=True)
    with pytest.raises(TraceFailed, match="has no kernels"):
        InProcessEngine(lambda: executor, options)
    assert executor._is_closed


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"scheduling_policy": "nobody's"}, UnknownPolicy, "nobody's"),
        ({"structured_outputs_backend": "xgrammar"}, BackendUnavailable, r"grammar\[xgrammar\]"),
        ({"trace_dir": "/no/where"}, TraceFailed, "/no/where"),
        ({"trace_file": "/no/where/t.json"}, TraceFailed, "folder /no/where"),
    ],
)
def test_what_no_executor_could_help_is_refused_before_one_is_made(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], error: type[Exception], words: str
) -> None:
    monkeypatch.setattr("openinfer_grammar._installed_backends.find_spec", lambda name: None)
    made = []
    with pytest.raises(error, match=words):
        InProcessEngine(lambda: made.append(True), EngineOptions(**options))
    assert not made


@pytest.mark.parametrize("last", ["", "raise SystemExit(3)"])
def test_an_engine_left_open_is_closed_when_the_interpreter_exits(last: str) -> None:
    code = (
        "from openinfer_contract import EventBuffer, GenerateRequest, StopRules, pack_ids\n"
        "from openinfer_engine import InProcessEngine\n"
        "from openinfer_testing import ModelledExecutor, ModelledOptions\n"
        "class Executor(ModelledExecutor):\n"
        "    def close(self):\n"
        "        print('closed')\n"
        "engine = InProcessEngine(lambda: Executor(ModelledOptions(step_s=0.01)))\n"
        "request = GenerateRequest(request_id='a', prompt_token_ids=pack_ids([1, 2]),\n"
        "                          stop=StopRules(max_tokens=500, ignore_eos=True))\n"
        "sink = EventBuffer()\n"
        "engine.submit(request, sink)\n"
        "sink.get_blocking()\n"
        f"{last}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == (3 if last else 0), done.stderr
    assert (done.stdout, done.stderr) == ("closed\n", "")
