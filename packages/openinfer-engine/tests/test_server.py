"""The server on a thread of this process, with short timeouts."""

import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openinfer_contract import (
    Close,
    Control,
    ControlResult,
    EngineFrameReader,
    GetLoad,
    Hello,
    LoadReport,
    StepEvents,
    Submit,
    encode_frame,
)
from openinfer_engine import EngineOptions, assemble
from openinfer_engine.process import _connection, _server
from openinfer_engine.process._address import listen
from openinfer_engine.process._server import EngineServer
from openinfer_testing import CountingShape, ZeroCostExecutor

Request = Callable[..., Any]


class Client:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = EngineFrameReader()
        self.heard: list[Any] = []
        sock.settimeout(5)

    def say(self, *messages: Any) -> None:
        self.sock.sendall(b"".join(encode_frame(message) for message in messages))

    def until(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        while not condition(self.heard):
            data = self.sock.recv(1 << 16)
            if not data:
                raise EOFError
            self.heard += self.reader.feed(data)
        return self.heard


Connect = Callable[[], Client]


@contextmanager
def serving(
    folder: Path,
    unwritable_s: float = 30.0,
    executor: type[ZeroCostExecutor] = ZeroCostExecutor,
    *,
    has_device: bool = False,
) -> Iterator[tuple[Client, Callable[[], Client]]]:
    shape = CountingShape(max_model_len=65536, num_blocks=8192, has_device=has_device)
    listener = listen(f"unix:{folder}/e.sock")
    ours, theirs = socket.socketpair()
    loop = assemble(executor(shape), EngineOptions())
    server = EngineServer(loop, theirs, [listener], unwritable_s)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    clients = [Client(ours)]

    def connect() -> Client:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(f"{folder}/e.sock")
        clients.append(Client(sock))
        return clients[-1]

    try:
        yield clients[0], connect
    finally:
        for client in clients:
            client.sock.close()
        thread.join(10)
        assert not thread.is_alive(), "the end of the parent ends the server"


def is_ended(messages: list[Any]) -> bool:
    return any(isinstance(message, StepEvents) and message.ends for message in messages)


def test_greeting_load_and_stream(make_request: Request, tmp_path: Path) -> None:
    with serving(tmp_path) as (parent, _):
        parent.say(Hello(), Submit(4, make_request()))
        heard = parent.until(is_ended)
        assert isinstance(heard[0], Hello)
        assert heard[0].info is not None
        assert isinstance(heard[1], LoadReport)
        parent.until(lambda m: any(isinstance(x, LoadReport) and x.load.num_finished for x in m))
        assert len([x for x in parent.heard if isinstance(x, LoadReport)]) <= 4


def test_a_quiet_engine_prepares(make_request: Request, tmp_path: Path) -> None:
    is_over, prepared = threading.Event(), list[float]()

    class Preparing(ZeroCostExecutor):
        def prepare(self) -> bool:
            prepared.append(time.monotonic())
            if len(prepared) == 3:
                is_over.set()
            assert len(prepared) <= 3
            return len(prepared) < 3

    with serving(tmp_path, executor=Preparing) as (parent, _):
        parent.say(Hello(), Submit(4, make_request()))
        parent.until(is_ended)
        # While requests follow one another, pauses between load reports do not count as idle.
        for stream in range(10, 40):
            parent.heard.clear()
            parent.say(Submit(stream, make_request(request_id=f"r{stream}")))
            parent.until(is_ended)
            time.sleep(0.02)
        assert prepared == []
        assert is_over.wait(5)
        parent.say(Submit(5, make_request(request_id="s")))
        parent.heard.clear()
        parent.until(is_ended)


@pytest.mark.timed
def test_idle_says_nothing_and_costs_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as (parent, _):
        parent.say(Hello())
        parent.until(lambda m: len(m) == 2)
        before = time.process_time()
        time.sleep(0.6)
        assert time.process_time() - before < 0.1, "an idle engine blocks"
        parent.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            parent.sock.recv(1)
        parent.sock.settimeout(5)


@pytest.mark.parametrize("has_device", [False, True])
def test_with_a_device_the_sockets_are_polled_a_moment_longer(
    has_device: bool, make_request: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    class Watched(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            waits.append(timeout)
            return super().select(timeout)

    monkeypatch.setattr(selectors, "DefaultSelector", Watched)
    monkeypatch.setattr(_server, "_POLLED_S", 0.05)
    with serving(tmp_path, has_device=has_device) as (parent, _):
        parent.say(Hello(), Submit(4, make_request()))
        parent.until(is_ended)
        waits.clear()
        time.sleep(0.3)
        assert (waits.count(0.0) > 20) == has_device
        assert waits[-1] != 0.0, "it blocks in the end"


def test_an_unwritable_peer_has_hung_up(make_request: Request, tmp_path: Path) -> None:
    with serving(tmp_path, 0.3) as (parent, connect):
        deaf = connect()
        deaf.say(Hello(), *(Submit(i, _long(make_request, i)) for i in range(4)))
        parent.say(Hello())

        def is_idle_again(heard: list[Any]) -> bool:
            loads = [x.load for x in heard if isinstance(x, LoadReport)]
            return any(load.num_running for load in loads) and loads[-1].is_idle

        deadline = time.monotonic() + 30
        parent.until(lambda heard: is_idle_again(heard) or time.monotonic() > deadline)
        with pytest.raises((EOFError, ConnectionResetError)):
            deaf.until(lambda heard: False)
        assert not is_ended(deaf.heard), "its requests were aborted with it"


def _long(make_request: Request, i: int) -> Any:
    return make_request([i + 1], request_id=f"long{i}", max_tokens=65000)


def test_a_flood_of_questions_without_listening_is_rude(tmp_path: Path) -> None:
    with serving(tmp_path) as (parent, connect):
        flood = connect()
        flood.say(Hello())
        with pytest.raises((ConnectionError, TimeoutError)):
            flood.say(*(Control(i, GetLoad()) for i in range(50_000)))
        parent.say(Hello(), Control(1, GetLoad()))
        parent.until(lambda m: any(isinstance(x, ControlResult) for x in m))


def test_no_descriptor_left_is_waited_out(
    make_request: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_server, "_ACCEPT_PAUSE_S", 0.3)
    tries: list[float] = []
    is_exhausted = True
    accept = socket.socket.accept

    def exhausted(self: socket.socket) -> Any:
        tries.append(time.monotonic())
        if is_exhausted:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    with serving(tmp_path) as (parent, connect), monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", exhausted)
        late = connect()
        late.say(Hello(), Submit(1, make_request(request_id="late")))
        parent.say(Hello(), Submit(1, make_request()))
        parent.until(is_ended)
        time.sleep(0.7)
        assert 1 <= len(tries) <= 4, "a client that cannot be accepted keeps the engine spinning"
        is_exhausted = False
        late.until(is_ended)


def test_a_client_that_is_gone_when_accepted_costs_nobody(
    make_request: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unlucky(_server.Connection):
        def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
            if monkeypatched:
                sock.close()
                raise OSError(errno.EINVAL, "Invalid argument")
            super().__init__(sock, *args, **more)

    monkeypatched = False
    monkeypatch.setattr(_server, "Connection", Unlucky)
    with serving(tmp_path) as (parent, connect):
        monkeypatched = True
        gone = connect()
        with pytest.raises((EOFError, ConnectionResetError)):
            gone.until(lambda m: False)
        parent.say(Hello(), Submit(1, make_request()))
        parent.until(is_ended)


def test_a_flood_of_requests_without_listening_is_not_read(
    make_request: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "_MAX_UNREAD_ROWS", 1000)
    with serving(tmp_path) as (parent, connect):
        flood = connect()
        flood.sock.settimeout(1.0)
        flood.say(Hello())
        with pytest.raises(TimeoutError):
            flood.say(*(Submit(i, make_request(b"")) for i in range(200_000)))
        parent.say(Hello(), Submit(1, make_request()))
        parent.until(is_ended)
        flood.until(lambda m: sum(len(x.ends) for x in m if isinstance(x, StepEvents)) > 500)


def test_a_stream_number_in_use_is_rude(make_request: Request, tmp_path: Path) -> None:
    with serving(tmp_path) as (parent, connect):
        rude = connect()
        rude.say(Hello(), Submit(1, _long(make_request, 1)), Submit(1, _long(make_request, 2)))
        with pytest.raises((EOFError, ConnectionResetError)):
            rude.until(lambda m: False)
        parent.say(Hello(), Submit(1, make_request()))
        parent.until(is_ended)


def test_close_from_any_client_ends_it(tmp_path: Path) -> None:
    with serving(tmp_path) as (parent, connect):
        other = connect()
        other.say(Hello(), Close())
        with pytest.raises((EOFError, ConnectionResetError)):
            other.until(lambda m: False)
        with pytest.raises(EOFError):
            parent.until(lambda m: False)
