import asyncio
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from openinfer_contract import (
    CommandDone,
    EngineDead,
    Failed,
    Finished,
    GetLoad,
    Load,
    Pause,
    Rejected,
    Resume,
    stream,
)
from openinfer_engine import (
    EngineStartError,
    EngineSupervisor,
    LaunchSpec,
    RemoteEngine,
    SupervisorOptions,
)
from openinfer_engine.process import _child_process
from openinfer_testing.engine import Recorder

Request = Callable[..., Any]
SPEC = LaunchSpec(model_path="", model_line="modelled")
FACTORY = "openinfer_testing:modelled_executor"
QUICK = SupervisorOptions(backoff_s=0.01, max_failed_starts=2)


def spec(**options: Any) -> LaunchSpec:
    return LaunchSpec(model_path="", model_line="modelled", line_options=options)


@asynccontextmanager
async def running(
    launch: LaunchSpec = SPEC, options: SupervisorOptions = QUICK, **more: Any
) -> AsyncIterator[EngineSupervisor]:
    supervisor = EngineSupervisor(launch, factory=FACTORY, options=options, **more)
    try:
        await supervisor.start()
        yield supervisor
    finally:
        await supervisor.shutdown()


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "10000", "MALLOC_ARENA_MAX": "2"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"MALLOC_ARENA_MAX": "2"}),
        ({"MALLOC_ARENA_MAX": "8"}, {"GOMP_SPINCOUNT": "10000", "MALLOC_ARENA_MAX": "8"}),
    ],
    ids=str,
)
def test_threads_spin_briefly_and_share_heaps_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: dict[str, str]
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MALLOC_ARENA_MAX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    async def main() -> None:
        async with running() as engine:
            environment = psutil.Process(engine.info.pid).environ()
            assert expected.items() <= environment.items()
            assert ("GOMP_SPINCOUNT" in environment) == ("GOMP_SPINCOUNT" in expected)

    asyncio.run(main())


def test_it_serves_and_drains(make_request: Request) -> None:
    async def main() -> None:
        progress: list[str] = []
        async with running(on_progress=progress.append) as engine:
            assert engine.state == "ready"
            assert engine.info.model_line == "modelled"
            events = [event async for event in stream(engine, make_request(max_tokens=5))]
            assert sum(event.num_tokens for event in events) == 5
            result = await asyncio.wrap_future(engine.control(GetLoad()))
            assert isinstance(result, CommandDone)
            recorder = Recorder("slow")
            engine.submit(make_request(request_id="slow", max_tokens=200), recorder)
            pid = engine.info.pid
            await engine.shutdown(drain_s=5.0)
            assert isinstance(recorder.end, Finished)
            assert recorder.end.reason == "length"
            assert engine.state == "closed"
            assert not psutil.pid_exists(pid)
            with pytest.raises(EngineDead, match="closed"):
                engine.submit(make_request(), recorder)

    asyncio.run(main())


def test_a_process_may_be_spawned_ahead_of_the_start() -> None:
    supervisor = EngineSupervisor(SPEC, factory=FACTORY, options=QUICK)
    before = children()
    supervisor.spawn()
    (spawned,) = children() - before

    async def main() -> None:
        try:
            await supervisor.start()
            assert children() == before | {spawned}
            assert supervisor.state == "ready"
        finally:
            await supervisor.shutdown()

    asyncio.run(main())
    assert children() == before


@pytest.mark.parametrize("is_kind", [False, True])
def test_what_was_spawned_and_never_started_is_killed(is_kind: bool) -> None:
    supervisor = EngineSupervisor(SPEC, factory=FACTORY)
    before = children()
    supervisor.spawn()
    assert len(children() - before) == 1
    if is_kind:
        asyncio.run(supervisor.shutdown())
    else:
        supervisor.close()
    assert children() == before


def test_a_killed_engine_is_restarted(
    make_request: Request, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with running(spec(step_s=0.005)) as engine:
            first = engine.info.pid
            recorder = Recorder("long")
            engine.submit(make_request(request_id="long", max_tokens=900), recorder)
            await recorder.until_tokens(2)
            os.kill(first, signal.SIGKILL)
            failed = await recorder.until_end()
            assert isinstance(failed, Failed)
            assert failed.is_retryable
            await until(lambda: engine.state == "restarting")
            with pytest.raises(EngineDead, match="died"):
                engine.submit(make_request(), Recorder("x"))
            with pytest.raises(EngineDead):
                await asyncio.wrap_future(engine.control(GetLoad()))
            assert engine.load() == Load()
            assert engine.info.pid == first
            await until(lambda: engine.state == "ready")
            assert engine.info.pid != first
            assert engine.num_restarts == 1
            events = [event async for event in stream(engine, make_request(max_tokens=3))]
            assert events[-1].end is not None

    asyncio.run(main())
    assert "the engine is back after 1 try" in caplog.messages


@pytest.mark.long
def test_only_failed_starts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted() -> tuple[socket.socket, socket.socket]:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> None:
        async with running() as engine:
            for restart in range(4):
                await until(lambda: engine.state == "ready")
                assert engine.num_restarts == restart
                os.kill(engine.info.pid, signal.SIGKILL)
                await until(lambda: engine.state != "ready")
            await until(lambda: engine.state == "ready")
            monkeypatch.setattr(_child_process.socket, "socketpair", exhausted)
            os.kill(engine.info.pid, signal.SIGKILL)
            assert "Too many open files" in await asyncio.wait_for(engine.wait_dead(), 10)
            await asyncio.sleep(0.1)
            assert (engine.state, engine.num_restarts) == ("dead", 6)

    asyncio.run(main())


def test_an_engine_that_may_not_be_restarted_is_dead() -> None:
    async def main() -> None:
        async with running(options=SupervisorOptions(max_failed_starts=0)) as engine:
            os.kill(engine.info.pid, signal.SIGKILL)
            assert "died" in await asyncio.wait_for(engine.wait_dead(), 10)
            assert (engine.state, engine.num_restarts) == ("dead", 0)

    asyncio.run(main())


def test_a_closed_engine_is_not_dead() -> None:
    async def main() -> None:
        async with running() as engine:
            waiting = asyncio.ensure_future(engine.wait_dead())
            await asyncio.sleep(0)
            await engine.shutdown()
            done, _ = await asyncio.wait([waiting], timeout=0.05)
            assert not done
            waiting.cancel()

    asyncio.run(main())


def test_a_dead_executor_is_restarted(make_request: Request) -> None:
    async def main() -> None:
        async with running(spec(dead_token=993)) as engine:
            recorder = Recorder("deadly")
            engine.submit(make_request([993, 1], request_id="deadly"), recorder)
            failed = await recorder.until_end()
            assert isinstance(failed, Failed)
            assert "the modelled device is lost" in failed.message
            await until(lambda: engine.num_restarts == 1 and engine.state == "ready")

    asyncio.run(main())


def test_a_hung_engine_is_killed(make_request: Request) -> None:
    async def main() -> None:
        options = SupervisorOptions(backoff_s=0.01, step_timeout_s=0.5)
        async with running(spec(hang_token=993), options) as engine:
            first = engine.info.pid
            recorder = Recorder("hang")
            engine.submit(make_request([993, 1], request_id="hang"), recorder)
            failed = await recorder.until_end()
            assert isinstance(failed, Failed)
            await until(lambda: engine.state == "ready" and engine.num_restarts == 1)
            assert "no step" in engine.reason
            assert not psutil.pid_exists(first)

    asyncio.run(main())


def test_frozen_rows_are_no_hang(make_request: Request) -> None:
    async def main() -> None:
        options = SupervisorOptions(backoff_s=0.01, step_timeout_s=0.6)
        async with running(spec(step_s=0.005), options) as engine:
            recorder = Recorder("r")
            engine.submit(make_request(max_tokens=200), recorder)
            await recorder.until_tokens()
            await asyncio.wrap_future(engine.control(Pause(mode="keep")))
            await asyncio.sleep(1.5)
            assert (engine.state, engine.num_restarts) == ("ready", 0)
            await asyncio.wrap_future(engine.control(Resume()))
            assert (await recorder.finished()).num_output_tokens == 200

    asyncio.run(main())


def test_idle_and_stopped_loops_are_no_hang() -> None:
    async def main() -> None:
        options = SupervisorOptions(backoff_s=0.01, step_timeout_s=0.2)
        async with running(SPEC, options) as engine:
            await asyncio.sleep(0.5)
            time.sleep(0.4)
            await asyncio.sleep(0.05)
            assert (engine.state, engine.num_restarts) == ("ready", 0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("factory", "options", "kind", "message"),
    [
        ("openinfer_engine:launch_line", {}, "NoModelLine", "not installed"),
        ("openinfer_engine:nothing", {}, "EngineError", "no executor factory"),
        ("no_such_module:nothing", {}, "EngineError", "no_such_module"),
        (FACTORY, {"shape": {"depth": 0}}, "ValueError", "depth must be"),
        (FACTORY, {"nonsense": 1, "step_s": "x"}, "ValidationError", "step_s"),
    ],
)
def test_a_failed_start_is_one_sentence(
    factory: str, options: dict[str, Any], kind: str, message: str
) -> None:
    async def main() -> None:
        supervisor = EngineSupervisor(
            LaunchSpec(model_path="/m", model_line="nobody", line_options=options), factory=factory
        )
        with pytest.raises(EngineStartError) as caught:
            await supervisor.start()
        assert caught.value.kind == kind
        assert message in caught.value.message
        assert "\n" not in caught.value.message
        assert supervisor.state == "dead"
        assert supervisor.reason == caught.value.message

    asyncio.run(main())


def test_a_hung_start_is_given_up() -> None:
    async def main() -> None:
        supervisor = EngineSupervisor(
            spec(start_s=60.0), factory=FACTORY, options=SupervisorOptions(start_silence_s=1.0)
        )
        before = children()
        with pytest.raises(EngineStartError, match="no progress for 1 s") as caught:
            await supervisor.start()
        assert caught.value.kind == "Hung"
        assert children() == before

    asyncio.run(main())


def test_a_start_that_is_killed_says_so() -> None:
    async def main() -> None:
        supervisor = EngineSupervisor(spec(start_s=60.0), factory=FACTORY)
        before = children()
        starting = asyncio.create_task(supervisor.start())
        await until(lambda: children() != before)
        (child,) = children() - before
        child.kill()
        with pytest.raises(EngineStartError, match="status -9") as caught:
            await starting
        assert caught.value.kind == "Exited"

    asyncio.run(main())


def test_close_kills_at_once(make_request: Request) -> None:
    async def main() -> None:
        async with running(spec(step_s=0.005)) as engine:
            recorder = Recorder("long")
            engine.submit(make_request(request_id="long", max_tokens=900), recorder)
            await recorder.until_tokens()
            pid = engine.info.pid
            engine.close()
            engine.close()
            assert isinstance(recorder.end, Failed)
            assert not psutil.pid_exists(pid)
            await asyncio.wrap_future(engine.drain())

    asyncio.run(main())


def test_draining_refuses(make_request: Request) -> None:
    async def main() -> None:
        async with running(spec(step_s=0.005)) as engine:
            live, late = Recorder("live"), Recorder("late")
            engine.submit(make_request(request_id="live", max_tokens=20), live)
            drained = engine.drain()
            engine.submit(make_request(request_id="late"), late)
            await asyncio.wrap_future(drained)
            assert isinstance(live.end, Finished)
            assert isinstance(late.end, Rejected)
            assert late.end.kind == "draining"

    asyncio.run(main())


def test_a_restart_without_descriptors_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pairs = socket.socketpair
    failures = [OSError(errno.EMFILE, "Too many open files")]

    def exhausted() -> tuple[socket.socket, socket.socket]:
        if failures:
            raise failures.pop()
        return pairs()

    async def main() -> None:
        async with running() as engine:
            monkeypatch.setattr(_child_process.socket, "socketpair", exhausted)
            os.kill(engine.info.pid, signal.SIGKILL)
            await until(lambda: engine.state == "ready" and engine.num_restarts == 2)
            assert "Too many open files" in engine.reason
            assert not failures

    asyncio.run(main())
    assert "the engine is back after 2 tries" in caplog.messages


def test_other_clients_find_the_restarted_engine_where_it_was(
    make_request: Request, tmp_path: Path
) -> None:
    async def main() -> None:
        listen = (f"unix:{tmp_path}/e.sock", "tcp:127.0.0.1:0")
        async with running(spec(step_s=0.005), listen=listen) as engine:
            addresses = engine.addresses
            others = [await RemoteEngine.connect(address) for address in addresses]
            recorders = [Recorder(f"r{i}") for i in range(2)]
            for other, recorder in zip(others, recorders, strict=True):
                long = make_request(request_id=recorder.request_id, max_tokens=900)
                other.submit(long, recorder)
                await recorder.until_tokens(2)
            killed = engine.info.pid
            os.kill(killed, signal.SIGKILL)
            for other, recorder in zip(others, recorders, strict=True):
                assert (await recorder.failed()).is_retryable
                with pytest.raises(EngineDead):
                    other.submit(make_request(), Recorder("x"))
            await until(lambda: engine.state == "ready" and engine.info.pid != killed)
            assert engine.addresses == addresses
            for address in addresses:
                again = await RemoteEngine.connect(address)
                assert again.info.pid == engine.info.pid
                recorder = Recorder("again")
                again.submit(make_request(request_id="again"), recorder)
                await recorder.finished()
                again.disconnect()

    asyncio.run(main())
