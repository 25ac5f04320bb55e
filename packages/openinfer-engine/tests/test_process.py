import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from openinfer_contract import (
    CONTRACT_VERSION,
    Abort,
    CommandDone,
    ContractVersionError,
    EngineDead,
    EngineFrameReader,
    Failed,
    Finished,
    GetLoad,
    Hello,
    Load,
    Sleep,
    StepEvents,
    Submit,
    Wake,
    encode_frame,
    stream,
    unpack_ids,
)
from openinfer_engine import EngineChild, LaunchSpec, ProcessSpec, RemoteEngine
from openinfer_engine.process._main import _progress_to, _send
from openinfer_engine.process._start_messages import Started
from openinfer_testing.engine import EngineNeeds, Recorder

Request = Callable[..., Any]


def process_spec(**options: Any) -> ProcessSpec:
    return ProcessSpec(
        launch=LaunchSpec(model_path="", model_line="modelled", line_options=options),
        factory="openinfer_testing:modelled_executor",
    )


@asynccontextmanager
async def running(*listen: str, **options: Any) -> AsyncIterator[EngineChild]:
    child = await EngineChild.start(process_spec(**options), listen=listen)
    try:
        yield child
    finally:
        if child.process.poll() is None:
            await child.kill()
        child.engine.disconnect()


async def exit_status(child: EngineChild) -> int:
    return await asyncio.to_thread(child.process.wait, 10)


def test_close_ends_it_well() -> None:
    async def main() -> None:
        async with running() as child:
            assert await child.stop(10) == 0

    asyncio.run(main())


LINGERING = """
import atexit, threading, time
from pathlib import Path
from openinfer_testing import CountingShape, ZeroCostExecutor

class Lingering(ZeroCostExecutor):
    def close(self):
        super().close()
        self.folder.joinpath("closed").touch()

def launch(spec):
    executor = Lingering(CountingShape())
    executor.folder = Path(spec.line_options["folder"])
    atexit.register(executor.folder.joinpath("hook").touch)
    threading.Thread(target=time.sleep, args=(60,)).start()
    return executor
"""


def test_all_is_done_when_close_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lingering.py").write_text(LINGERING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    line = LaunchSpec(model_path="", model_line="x", line_options={"folder": str(tmp_path)})

    async def main() -> None:
        child = await EngineChild.start(ProcessSpec(launch=line, factory="lingering:launch"))
        assert await child.stop(10) == 0, "it waited for the thread, and was killed"

    asyncio.run(main())
    assert (tmp_path / "closed").exists()
    assert not (tmp_path / "hook").exists()


def test_its_end_is_the_parents_end(make_request: Request) -> None:
    async def main() -> None:
        async with running(step_s=0.005) as child:
            recorder = Recorder("r")
            child.engine.submit(make_request(max_tokens=900), recorder)
            await recorder.until_tokens()
            child.engine.disconnect()
            assert await exit_status(child) == 0
            assert isinstance(recorder.end, Failed)

    asyncio.run(main())


def test_a_killed_parent_takes_it_along(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal\n"
        "from openinfer_engine import EngineChild, LaunchSpec, ProcessSpec\n"
        "async def main():\n"
        "    spec = ProcessSpec(launch=LaunchSpec(model_path='', model_line='x'),\n"
        "        factory='openinfer_testing:modelled_executor')\n"
        "    child = await EngineChild.start(spec)\n"
        "    print(child.process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert parent.returncode == -signal.SIGKILL
    engine = psutil.Process(int(parent.stdout)) if psutil.pid_exists(int(parent.stdout)) else None
    if engine is not None:
        engine.wait(10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_the_fronts_business(make_request: Request, number: signal.Signals) -> None:
    async def main() -> None:
        async with running() as child:
            child.process.send_signal(number)
            events = [event async for event in stream(child.engine, make_request())]
            assert isinstance(events[-1].end, Finished)
            assert await child.stop(10) == 0

    asyncio.run(main())


def test_a_dead_executor_ends_it_with_a_status(make_request: Request) -> None:
    async def main() -> None:
        async with running(dead_token=993) as child:
            recorder = Recorder("r")
            child.engine.submit(make_request([993, 1]), recorder)
            await recorder.until_end()
            assert await exit_status(child) == 70
            await child.engine.wait_dead()
            with pytest.raises(EngineDead):
                child.engine.submit(make_request(), recorder)

    asyncio.run(main())


def test_start_messages_carry_progress_and_addresses(tmp_path: Path) -> None:
    async def main() -> None:
        listen = [f"unix:{tmp_path}/e.sock", "tcp:127.0.0.1:0"]
        async with running(*listen) as child:
            assert child.addresses[0] == listen[0]
            port = int(child.addresses[1].rpartition(":")[2])
            assert port > 0
            assert os.stat(tmp_path / "e.sock").st_mode & 0o077 == 0

    asyncio.run(main())


def test_an_address_in_use_is_a_sentence() -> None:
    async def main() -> None:
        async with running("tcp:127.0.0.1:0") as child:
            with pytest.raises(Exception, match="in use"):
                await EngineChild.start(process_spec(), listen=child.addresses)

    asyncio.run(main())


async def load(engine: RemoteEngine) -> Load:
    result = await asyncio.wrap_future(engine.control(GetLoad()))
    assert isinstance(result, CommandDone)
    assert result.load is not None
    return result.load


def test_two_fronts_do_not_disturb_each_other(make_request: Request, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(f"unix:{tmp_path}/e.sock", step_s=0.002) as child:
            one = await RemoteEngine.connect(child.addresses[0])
            two = await RemoteEngine.connect(child.addresses[0])
            mine, yours = Recorder("mine"), Recorder("yours")
            one.submit(make_request(request_id="mine", max_tokens=900), mine)
            two.submit(make_request(request_id="yours", max_tokens=50), yours)
            # Over two connections, only a token shows that the engine has read the first request.
            await mine.until_tokens()
            same = Recorder("mine")
            two.submit(make_request(request_id="mine"), same)
            assert (await same.rejected()).kind == "duplicate"
            one.disconnect()
            assert isinstance(mine.end, Failed)
            assert (await yours.finished()).num_output_tokens == 50
            # A step in flight may still hold blocks of the disconnected client.
            async with asyncio.timeout(10):
                while not (await load(two)).is_idle:
                    await asyncio.sleep(0.01)
            two.disconnect()

    asyncio.run(main())


def test_one_python_thread_under_load(make_request: Request) -> None:
    """The executor counts the process's Python threads at every wait of a step."""

    async def main() -> None:
        async with running("tcp:127.0.0.1:0", step_s=0.001) as child:
            other = await RemoteEngine.connect(child.addresses[0])
            recorders = []
            for i in range(40):
                recorder = Recorder(f"r{i}")
                recorders.append(recorder)
                engine = other if i % 2 else child.engine
                engine.submit(make_request([i + 1], request_id=f"r{i}", max_tokens=30), recorder)
            for recorder in recorders:
                await recorder.finished()
            result = await asyncio.wrap_future(child.engine.control(Sleep()))
            assert isinstance(result, CommandDone)
            assert result.message == "1"
            other.disconnect()

    asyncio.run(main())


def test_commands_of_nobody_are_refused() -> None:
    async def main() -> None:
        async with running() as child:
            result = await asyncio.wrap_future(child.engine.control(Wake()))
            assert not isinstance(result, CommandDone)
            assert result.kind == "unsupported"

    asyncio.run(main())


def _raw(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(address.removeprefix("unix:"))
    sock.settimeout(5)
    return sock


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x01\0\0\0\xc1",
        encode_frame(Hello())[:-1] + b"\xc1",
        encode_frame(Abort(())),
        encode_frame(Hello()) * 2,
        encode_frame(Hello(contract_version=CONTRACT_VERSION + 1)),
    ],
    ids=["http", "oversize", "garbage", "bad hello", "no hello", "two hellos", "version"],
)
def test_a_rude_client_is_shown_the_door(
    data: bytes, lender: Any, make_request: Request, modelled_spec: Any
) -> None:
    async def main() -> None:
        async with lender._child(EngineNeeds()) as child:
            with _raw(child.addresses[0]) as rude:
                rude.sendall(data)
                await asyncio.to_thread(_read_to_end, rude)
            events = [event async for event in stream(child.engine, make_request())]
            assert isinstance(events[-1].end, Finished)

    lender.runner.run(main())


def _read_to_end(sock: socket.socket) -> bytes:
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def test_a_client_of_another_version_is_told_both(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running("tcp:127.0.0.1:0") as child:
            monkeypatch.setattr("openinfer_contract._wire.CONTRACT_VERSION", CONTRACT_VERSION + 5)
            with pytest.raises(ContractVersionError) as caught:
                await RemoteEngine.connect(child.addresses[0])
            assert caught.value.theirs == CONTRACT_VERSION

    asyncio.run(main())


async def _stopped_socket(seconds: float, make_request: Request, folder: Path) -> None:
    """One client reads nothing from its socket while another one does."""
    address = f"unix:{folder}/e.sock"
    async with running(address, shape={"max_model_len": 65536, "num_blocks": 8192}) as child:
        with _raw(address) as stopped:
            stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stopped.sendall(encode_frame(Hello()))
            long = make_request([1], request_id="stopped", max_tokens=30000)
            stopped.sendall(encode_frame(Submit(3, long)))
            begin, num_served, slowest = time.monotonic(), 0, 0.0
            while num_served < 20 or time.monotonic() - begin < seconds:
                asked = time.monotonic()
                recorder = Recorder(f"r{num_served}")
                request = make_request([num_served % 900], request_id=f"r{num_served}")
                child.engine.submit(request, recorder)
                await recorder.finished()
                slowest = max(slowest, time.monotonic() - asked)
                num_served += 1
            assert slowest < 1.0, "a stopped reader slows another front down"
            tokens, end = await asyncio.to_thread(_drain_stream, stopped)
        assert isinstance(end, Finished), f"the stopped stream ended with {end}"
        assert end.num_output_tokens == 30000
        assert tokens == [(2 + i) % 1000 for i in range(30000)], "tokens are lost"


def _drain_stream(sock: socket.socket) -> tuple[list[int], Any]:
    reader = EngineFrameReader()
    tokens: list[int] = []
    while True:
        for message in reader.feed(sock.recv(65536)):
            if isinstance(message, StepEvents):
                for stream_id, event in message.rows():
                    assert stream_id == 3
                    tokens += unpack_ids(event.token_ids)
                    if event.end is not None:
                        return tokens, event.end


@pytest.mark.long
def test_a_stopped_socket_costs_only_itself(make_request: Request, tmp_path: Path) -> None:
    asyncio.run(_stopped_socket(0.5, make_request, tmp_path))


@pytest.mark.slow
def test_a_socket_stopped_for_ten_seconds(make_request: Request, tmp_path: Path) -> None:
    asyncio.run(_stopped_socket(10.0, make_request, tmp_path))


def test_no_torch_in_an_engine_without_a_model() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import openinfer_engine, openinfer_engine.process._main, openinfer_testing\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_spec_survives_the_pipe() -> None:
    spec = process_spec(step_s=0.5, shape={"depth": 1})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=ProcessSpec) == spec


def test_a_closed_engine_leaves_no_socket_file(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "engine.sock"
        child = await EngineChild.start(process_spec(), listen=[f"unix:{path}"])
        assert path.exists()
        assert await child.stop(10) == 0
        assert not path.exists()

    asyncio.run(main())


def test_a_parent_that_went_away_during_the_start_costs_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours, parents = socket.socketpair()
    with ours:
        assert _send(ours, Started(()))
        parents.close()
        assert not _send(ours, Started(()))
        with _progress_to(ours):
            logging.getLogger("test").warning("loading")
    assert "Error" not in capsys.readouterr().err


def test_no_line_of_another_thread_follows_the_start():
    """A thread may still log through the handler when the parent already reads messages."""
    parent, child = socket.socketpair()
    with parent, child:
        with _progress_to(child):
            (handler,) = [each for each in logging.getLogger().handlers if is_progress(each)]
        record = logging.LogRecord("x", logging.INFO, "", 0, "vocabulary ready", None, None)
        handler.handle(record)
        parent.setblocking(False)
        with pytest.raises(BlockingIOError):
            parent.recv(1)


def is_progress(handler: logging.Handler) -> bool:
    return type(handler).__name__ == "_ProgressHandler"
