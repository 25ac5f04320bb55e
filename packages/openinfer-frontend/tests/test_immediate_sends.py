"""Events that are sent from the engine's callback, and events that wait for the reader."""

import gc
import json
import socket
import threading
import time
import weakref
from collections import Counter

import pytest

from openinfer_contract import Failed, Finished
from openinfer_frontend.generation._generation import Generation
from openinfer_frontend.http._connection import Connection
from openinfer_frontend.protocols.openai._choices_format import CompletionFormat
from openinfer_frontend.routes._generate_routes import GenerateRoutes


@pytest.fixture
def count(monkeypatch):
    """Counts the results of a method of connections."""

    def patch(name):
        seen, method = Counter(), getattr(Connection, name)

        def counted(connection, *args):
            was_sent = method(connection, *args)
            seen[was_sent] += 1
            return was_sent

        monkeypatch.setattr(Connection, name, counted)
        return seen

    return patch


@pytest.fixture
def sent(count):
    """Counts immediate sends: True if sent, False if the send would have had to wait."""
    return count("_send_now")


@pytest.fixture
def begun(count):
    """Counts immediate sends of heads with their first events."""
    return count("_begin_now")


@pytest.fixture
def ask(start, make_app, fakes, caplog):
    """Begins a streamed completion: returns the engine, a socket to read, and a function that
    emits."""
    engine = fakes.FakeEngine()
    server = start(make_app(engine))
    # Connections inherit this option. Their buffers are small, so larger sends have to wait.
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    socks = []

    def begin(**fields):
        sock = socket.socket()
        socks.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.connect(server.socket.getsockname())
        sock.sendall(request(**fields))
        deadline = time.monotonic() + 5
        while not engine.live:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return engine, sock, emit

    def emit(*entries):
        """Emits all texts in one iteration of the event loop, and returns afterwards."""
        done = threading.Event()
        server.call(lambda: [engine.emit(entry) for entry in entries if engine.live])
        server.call(done.set)
        assert done.wait(10)

    yield begin
    for sock in socks:
        sock.close()
    # The loop logs what a callback raises, and continues.
    assert not [r for r in caplog.get_records("call") if r.name == "asyncio"], caplog.text


def request(*, version=b"1.1", headers=b"", **fields):
    body = json.dumps({"prompt": "Hi", "stream": True} | fields).encode()
    head = b"POST /v1/completions HTTP/%b\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    return head % (version, headers, len(body)) + body


def read_until(sock, mark):
    data = b""
    while mark not in data:
        data += (part := sock.recv(65536))
        assert part, data[-500:]
    return data


def events(data):
    """Returns the events of a chunked body, without its [DONE]."""
    body, rest = b"", data.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    *chunks, done = body.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def test_a_reader_in_fits_and_starts_misses_nothing(ask, sent):
    _, sock, emit = ask(max_tokens=400)
    emit("begin ")
    data = read_until(sock, b"begin ")
    texts = [f"{number:04} " * 600 for number in range(150)]
    for number in range(0, 150, 2):
        emit(*texts[number : number + 2])
        if number % 50 == 48:
            # The client has read nothing so far; now it reads everything.
            data += read_until(sock, b"%04d " % (number + 1))
    emit(Finished(reason="length"))
    data += read_until(sock, b"[DONE]\n\n\r\n0\r\n\r\n")
    choices = [event["choices"][0] for event in events(data)]
    assert "".join(choice["text"] for choice in choices) == "begin " + "".join(texts)
    assert [choice["finish_reason"] for choice in choices][-1] == "length"
    assert min(sent[True], sent[False]) > 1, sent


def test_a_stream_begins_in_the_callback(ask, begun):
    """The head sent immediately equals the head that uvicorn makes of the same headers."""
    heads = []
    for headers in (b"", b"connection: close\r\n"):
        _, sock, emit = ask(headers=headers + b"x-request-id: mine\r\n")
        emit("first", "second")
        emit(Finished(reason="length"))
        data = read_until(sock, b"[DONE]\n\n\r\n0\r\n\r\n")
        assert [e["choices"][0]["text"] for e in events(data)] == ["first", "second", ""]
        lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
        heads.append([line for line in lines if not line.startswith((b"date", b"connection"))])
    assert begun == {True: 1, False: 1}
    assert heads[0] == heads[1]
    assert b"x-request-id: mine" in heads[0]


def test_a_first_event_that_ends_the_stream_is_sent_with_the_head(ask):
    _, sock, emit = ask(stop=["END"])
    emit("aEND")
    assert [e["choices"][0]["text"] for e in events(read_until(sock, b"0\r\n\r\n"))] == ["a"]


def test_a_request_sent_early_waits_for_its_turn(ask, begun):
    engine, sock, emit = ask()
    sock.sendall(request())
    time.sleep(0.1)
    for _ in range(2):
        emit("one")
        emit(Finished(reason="length"))
        data = read_until(sock, b"0\r\n\r\n")
        assert data.startswith(b"HTTP/1.1 200")
        assert [e["choices"][0]["text"] for e in events(data)] == ["one", ""]
        deadline = time.monotonic() + 5
        while len(engine.requests) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert begun == {False: 1, True: 1}


def test_a_head_after_an_unread_response_waits(ask, begun):
    """The connection's buffer is full of the previous response."""
    engine, sock, emit = ask(stream=False)
    long = "x" * 400_000
    emit(long)
    emit(Finished(reason="length"))
    sock.sendall(request())
    deadline = time.monotonic() + 5
    while len(engine.requests) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    emit("first")
    emit("second")
    assert begun == {False: 1}
    data = read_until(sock, b'"text":"first')
    emit(Finished(reason="length"))
    data += read_until(sock, b"[DONE]\n\n\r\n0\r\n\r\n")
    answer, head, stream = data.rpartition(b"HTTP/1.1 200")
    assert long.encode() in answer
    assert "".join(e["choices"][0]["text"] for e in events(head + stream)) == "firstsecond"


def test_a_refusal_after_unsent_events_keeps_its_status(ask, monkeypatch):
    monkeypatch.setattr(Connection, "_begin_now", lambda *_: False)
    _, sock, emit = ask()
    emit("first", Failed(message="too late", field="deadline"))
    assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 408")


def test_an_http_1_0_client_gets_no_chunks(ask, begun):
    _, sock, emit = ask(version=b"1.0")
    emit("first")
    emit(Finished(reason="length"))
    data = read_until(sock, b"[DONE]\n\n")
    assert b"transfer-encoding" not in data
    assert data.partition(b"\r\n\r\n")[2].startswith(b"data: {")
    assert begun == {False: 1}


def test_a_stop_string_found_in_the_callback_ends_the_stream(ask, sent):
    engine, sock, emit = ask(stop=["END"])
    for text in ("a", "b", "c"):
        emit(text)
        data = read_until(sock, b'"text":"%b"' % text.encode())
    emit("dEN")
    emit("D e")
    emit("never")
    data = read_until(sock, b"0\r\n\r\n")
    last = events(b"\r\n\r\n" + data)[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "END")
    assert b"never" not in data
    assert sent[True] > 1
    assert engine.aborted == [engine.requests[0].request_id]


def test_an_error_in_the_callback_fails_the_stream(ask, sent, monkeypatch, caplog):
    engine, sock, emit = ask()
    for text in ("a", "b", "c"):
        emit(text)
        read_until(sock, b'"text":"%b"' % text.encode())
    assert sent[True] > 0

    def fail(*_):
        raise RuntimeError("a fault of the format")

    monkeypatch.setattr(CompletionFormat, "chunk", fail)
    emit("d")
    data = read_until(sock, b"0\r\n\r\n")
    assert json.loads(data.split(b"data: ")[1].split(b"\n")[0])["error"]["code"] == 500
    assert "a fault of the format" in caplog.text
    assert not engine.live


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_fault_after_the_submit_aborts_the_request(
    fakes, make_app, client_of, monkeypatch, is_streamed
):
    """Objects that only the response needs are made after the engine has the request."""

    def fail(*_):
        raise RuntimeError("a fault of a parser")

    engine = fakes.FakeEngine()
    client = client_of(make_app(engine))
    body = {"prompt": "Hi", "stream": is_streamed, "request_id": "mine"}
    monkeypatch.setattr(GenerateRoutes, "_outputs", fail)
    for _ in range(2):  # the request's id can be used again
        assert client.post("/v1/completions", body).status_code == 500
        assert not engine.live
    assert engine.aborted == [request.request_id for request in engine.requests]


def test_a_finished_stream_leaves_no_reference_cycle(ask, sent, monkeypatch):
    alive, enter = weakref.WeakSet(), Generation.__enter__

    def note(generation):
        alive.add(generation)
        return enter(generation)

    monkeypatch.setattr(Generation, "__enter__", note)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            _, sock, emit = ask()
            for text in ("a", "b", "c"):
                emit(text)
                read_until(sock, b'"text":"%b"' % text.encode())
            emit(Finished(reason="length"))
            read_until(sock, b"0\r\n\r\n")
        deadline = time.monotonic() + 5
        while len(alive):
            assert time.monotonic() < deadline, f"{len(alive)} of 5 are still there"
            time.sleep(0.01)
    finally:
        gc.enable()
    assert sent[True] > 5
