"""Requests that still run when a drain times out or a second signal arrives."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from openinfer_frontend import SAME_SIGNAL_S, bind, new_event_loop, serve

MESSAGES = [{"role": "user", "content": "Hi"}]
SAID = "the server is shutting down"


def _until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _said(caplog):
    ours = [record for record in caplog.records if record.name.split(".")[0] != "httpx"]
    return [(record.levelname, record.getMessage()) for record in ours]


def _events(response):
    parts = [event.split("data: ")[-1] for event in response.text.split("\n\n") if event]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


@pytest.fixture
def running(start, make_app, fakes):
    """A server whose engine emits the first token of every second request, and ends none."""
    engine = fakes.FakeEngine()
    engine.script = lambda request: ["He"] if request.stop.max_tokens == 9 else []
    with httpx.Client(timeout=10) as client:
        server = start(make_app(engine), drain_timeout_s=0.1)

        def post(path, **fields):
            return client.post(server.url + path, json=fields)

        yield server, engine, post


def test_unfinished_requests_get_an_error(running, caplog):
    caplog.set_level(logging.INFO)
    server, engine, post = running
    calls = [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/completions", {"prompt": "Hi", "stream": True}),
        ("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 9}),
        ("/v1/responses", {"input": "Hi", "stream": True, "max_output_tokens": 9}),
        ("/v1/messages", {"messages": MESSAGES, "stream": True, "max_tokens": 9}),
    ]
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(post, path, model="tiny", **fields) for path, fields in calls]
        _until(lambda: len(engine.live) == len(calls))
        time.sleep(0.05)  # the heads and the first events have been sent
        server.stop()
        server.join()
        whole, unbegun, begun, responses, messages = [answer.result() for answer in answers]
    for answer in (whole, unbegun):
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == SAID
        assert int(answer.headers["retry-after"]) >= 1
    assert begun.status_code == 200
    first, error, end = _events(begun)
    assert first["choices"][0]["text"] == "He"
    assert (error["error"]["message"], error["error"]["code"], end) == (SAID, 503, "[DONE]")
    assert _events(responses)[-1]["response"]["error"]["message"] == SAID
    assert _events(messages)[-1]["error"] == {"type": "overloaded_error", "message": SAID}
    assert not engine.live
    draining, (level, cut_off) = _said(caplog)
    assert draining == ("INFO", "draining 5 requests, up to 0.1 s")
    assert level == "WARNING"
    assert re.fullmatch(r"5 requests cut off after 0\.\d s", cut_off)


def test_a_drain_without_requests_logs_nothing(start, app, caplog):
    caplog.set_level(logging.INFO)
    server = start(app)
    with httpx.Client() as client:
        assert client.get(server.url + "/health").status_code == 200
        server.stop()
        server.join()
    assert _said(caplog) == []


def test_clients_that_read_nothing_or_send_half_are_disconnected(start, make_app, fakes, caplog):
    engine = fakes.FakeEngine()
    server = start(make_app(engine), drain_timeout_s=0.1)
    fields = {"prompt": "Hi", "stream": True, "max_tokens": 400, "return_token_ids": True}
    body = json.dumps(fields).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    address = server.socket.getsockname()
    with socket.socket() as silent, socket.create_connection(address, timeout=10) as half:
        half.sendall(head + body[:9])
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(address)
        silent.sendall(head + body)
        _until(lambda: engine.live)
        for _ in range(50):  # 5 MB, more than the buffers on the way hold
            taken = threading.Event()
            server.call(engine.emit, "x" * 2**14)
            server.call(taken.set)
            assert taken.wait(10)
        server.stop()
        server.join()
        assert half.recv(4096).startswith(b"HTTP/1.1 503 ")
    assert not engine.live
    ((_, cut_off),) = _said(caplog)
    assert cut_off.startswith("2 requests cut off after ")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (signal.SIGINT, "Ctrl-C again"),
        (signal.SIGTERM, "a second signal"),
    ],
)
def test_a_second_signal_cuts_off_at_once(make_app, fakes, caplog, number, advice):
    """Signals arrive in the main thread, so the client runs in a thread of its own."""
    caplog.set_level(logging.INFO)
    engine, hurried = fakes.FakeEngine(), []
    sock = bind("127.0.0.1", 0)
    sock.listen()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1/completions"

    def signals():
        _until(lambda: engine.live)
        os.kill(os.getpid(), number)
        _until(lambda: caplog.records)
        time.sleep(SAME_SIGNAL_S)
        os.kill(os.getpid(), number)

    async def main():
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(httpx.post, url, json={"prompt": "Hi"}, timeout=10)
            told = pool.submit(signals)
            await serve(make_app(engine), [sock], on_second_signal=lambda: hurried.append(1))
            told.result()
            return answer.result()

    begun = time.monotonic()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        answer = runner.run(main())
    assert time.monotonic() - begun < 10
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, SAID)
    assert hurried == [1]
    (_, draining), (_, cut_off) = _said(caplog)
    assert draining == f"draining 1 request, up to 30 s; {advice} ends at once"
    assert cut_off.startswith("1 request cut off after ")
