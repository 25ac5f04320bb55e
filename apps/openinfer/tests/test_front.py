import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress

import msgspec
import pytest

from openinfer.launch._resolve import resolve_model
from openinfer.options._http_options import HttpOptions
from openinfer.options._text_options import TextOptions
from openinfer.serve import _front
from openinfer.serve._front import FrontProcesses, FrontSpec, ReconnectingEngine
from openinfer_contract import ContractVersionError, EngineDead, Hello, encode_frame
from openinfer_frontend import SAME_SIGNAL_S, CounterPages

_NEWER = 999


@pytest.fixture
def spec():
    return FrontSpec(
        model_path=str(resolve_model(None).path),
        text=TextOptions(),
        http=HttpOptions(served_model_names=("tiny",)),
        version="0",
    )


@pytest.fixture
def sock():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def counters():
    with closing(CounterPages(3)) as pages:
        yield pages


async def _newer_engine(path):
    """Engine that greets with a newer version of the contract."""

    async def greet(reader, writer):
        writer.write(encode_frame(Hello(contract_version=_NEWER, peer="newer")))
        with suppress(OSError):
            while await reader.read(4096):
                pass
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_unix_server(greet, path)


def test_an_engine_of_another_version_ends_the_search(tmp_path):
    async def main():
        address = f"unix:{tmp_path}/e.sock"
        engine = ReconnectingEngine(address)
        with pytest.raises(EngineDead):
            await engine.connect()
        keeper = asyncio.create_task(engine.keep())
        await asyncio.sleep(0)
        async with await _newer_engine(f"{tmp_path}/e.sock"), asyncio.timeout(10):
            with pytest.raises(ContractVersionError, match="999"):
                await keeper
        assert engine.state == "restarting"
        with pytest.raises(EngineDead, match="restarting"):
            engine.handle()

    asyncio.run(main())


@pytest.mark.parametrize("is_there_from_the_start", [True, False])
def test_a_front_process_of_another_version_ends_with_a_sentence(
    tmp_path, spec, sock, counters, is_there_from_the_start
):
    path = f"{tmp_path}/e.sock"
    child = _front._ChildSpec(
        front=spec,
        address=f"unix:{path}",
        fd=sock.fileno(),
        counters_fd=counters.fd,
        num_fronts=3,
    )

    async def main():
        server = await _newer_engine(path) if is_there_from_the_start else None
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_front._CHILD,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(sock.fileno(), counters.fd),
        )
        process.stdin.write(msgspec.json.encode(child) + b"\n")
        if server is None:
            await asyncio.sleep(1)
            assert process.returncode is None
            server = await _newer_engine(path)
        async with server, asyncio.timeout(30):
            stderr = (await process.stderr.read()).decode()
            return await process.wait(), stderr

    status, stderr = asyncio.run(main())
    assert status == 1
    assert str(_NEWER) in stderr
    assert "Traceback" not in stderr


def test_a_front_process_that_counts_otherwise_ends_with_a_sentence(spec, sock, counters):
    counters.page(0)[0] = 7.0
    child = _front._ChildSpec(
        front=spec,
        address="unix:nowhere",
        fd=sock.fileno(),
        counters_fd=counters.fd,
        num_fronts=3,
        number=1,
    )
    ended = subprocess.run(
        [sys.executable, *_front._CHILD],
        input=msgspec.json.encode(child) + b"\n",
        stderr=subprocess.PIPE,
        pass_fds=(sock.fileno(), counters.fd),
        timeout=60,
    )
    assert ended.returncode == 1
    assert b"restart the server" in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert counters.totals(2) == [7.0, 0.0]


@pytest.fixture
def processes(monkeypatch, sock, counters):
    """Makes front processes that run the given code instead of a front end."""

    def make(spec, code, *, count=1, **patience):
        for name, value in patience.items():
            monkeypatch.setattr(_front, name, value)
        monkeypatch.setattr(_front, "_CHILD", ("-S", "-c", code))
        return FrontProcesses(spec, sock, "unix:nowhere", count, counters)

    return make


async def _until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_one_that_dies_is_replaced_under_its_number(processes, spec, tmp_path, caplog):
    code = (
        "import json, os, sys\n"
        "told = json.loads(sys.stdin.readline())\n"
        f"name = '{tmp_path}/%s' % os.getpid()\n"
        "with open(name, 'w') as file:\n"
        "    file.write('%d %d' % (told['number'], told['num_fronts']))\n"
        "sys.stdin.read()\n"
    )

    def told():
        return {int(file.name): file.read_text() for file in tmp_path.iterdir()}

    async def main():
        fronts = processes(spec, code, count=2, _RESTART_S=0.01)
        await fronts.start()
        first = set(fronts._processes)
        await _until(lambda: sorted(told().values()) == ["1 3", "2 3"])
        dead = next(iter(first))
        dead.kill()
        await _until(lambda: len(fronts._processes - first) == 1)
        (new,) = fronts._processes - first
        await _until(lambda: told().get(new.pid))
        assert told()[new.pid] == told()[dead.pid]
        await fronts.stop()
        assert not fronts._processes

    asyncio.run(main())
    assert [r.getMessage() for r in caplog.records] == [
        "a front process ended with status -9; starting another"
    ]


def test_one_that_never_lives_is_given_up(processes, spec, caplog):
    async def main():
        fronts = processes(spec, "raise SystemExit(1)", _RESTART_S=0.01)
        await fronts.start()
        await asyncio.wait_for(asyncio.gather(*fronts._keepers), 20)
        await fronts.stop()

    asyncio.run(main())
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == _front._MAX_RESTARTS + 1
    assert "not restarted" in messages[-1]


def test_one_that_lived_for_long_is_replaced_without_end(processes, spec, caplog):
    async def main():
        fronts = processes(spec, "raise SystemExit(1)", _RESTART_S=0.0, _SETTLED_S=0.0)
        await fronts.start()
        await _until(lambda: len(caplog.records) > _front._MAX_RESTARTS + 1)
        await fronts.stop()

    asyncio.run(main())
    assert all("starting another" in record.getMessage() for record in caplog.records)


def test_one_that_ends_just_before_the_drain_is_not_replaced(processes, spec, caplog):
    async def main():
        fronts = processes(spec, "pass", _RESTART_S=30.0)
        await fronts.start()
        await _until(lambda: not fronts._processes)
        begun = time.monotonic()
        fronts.drain()
        await fronts.stop()
        assert time.monotonic() - begun < 10
        assert not fronts._processes

    asyncio.run(main())
    assert caplog.records == []


def test_the_drain_reaches_them_at_once_and_the_end_kills_who_stays(processes, spec, monkeypatch):
    async def main():
        code = "import os, sys, time; sys.stdin.read(); os.write(1, b'x'); time.sleep(60)"
        reader, writer = os.pipe()
        code = code.replace("os.write(1", f"os.write({writer}")
        patient = msgspec.structs.replace(
            spec, http=msgspec.structs.replace(spec.http, drain_timeout_s=0.0)
        )
        fronts = processes(patient, code, _AFTER_DRAIN_S=0.1)
        spawn = asyncio.create_subprocess_exec

        async def with_pipe(*arguments, pass_fds, **options):
            return await spawn(*arguments, pass_fds=(*pass_fds, writer), **options)

        monkeypatch.setattr(asyncio, "create_subprocess_exec", with_pipe)
        await fronts.start()
        (process,) = fronts._processes
        fronts.drain()
        assert await asyncio.to_thread(os.read, reader, 1) == b"x"
        assert process.returncode is None
        await fronts.stop()
        assert process.returncode == -9
        os.close(reader)
        os.close(writer)

    asyncio.run(main())


def test_the_hurry_is_told_again_to_those_whose_drain_began_late(processes, spec, tmp_path):
    code = (
        "import signal, sys, time\n"
        "told = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))\n"
        f"open('{tmp_path}/ready', 'w').close()\n"
        "while len(told) < 2: signal.pause()\n"
        f"with open('{tmp_path}/gap', 'w') as file: file.write(str(told[1] - told[0]))\n"
    )

    async def main():
        fronts = processes(spec, code)
        await fronts.start()
        await _until((tmp_path / "ready").exists)
        fronts.hurry()
        await fronts.stop()  # kills the process after 5 s

    asyncio.run(main())
    assert float((tmp_path / "gap").read_text()) > 0.9 * SAME_SIGNAL_S


def test_a_machine_that_can_start_nobody_is_tried_again(processes, spec, monkeypatch, caplog):
    async def main():
        fronts = processes(spec, "pass", _RESTART_S=0.01)
        await fronts.start()
        spawn, num_tries = fronts._spawn, 0

        async def fails_once(number):
            nonlocal num_tries
            num_tries += 1
            if num_tries == 1:
                raise OSError("no more processes")
            return await spawn(number)

        monkeypatch.setattr(fronts, "_spawn", fails_once)
        await _until(lambda: num_tries >= 2)
        await fronts.stop()

    asyncio.run(main())
    assert any("no more processes" in r.getMessage() for r in caplog.records)
    assert all(r.levelno == logging.ERROR for r in caplog.records)
