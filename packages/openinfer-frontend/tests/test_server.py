"""Real sockets, the official client, and a drain."""

import asyncio
import json
import os
import select
import signal
import socket
import threading
import time
from types import SimpleNamespace

import httpx
import openai
import pytest

from openinfer_contract import Finished
from openinfer_frontend import ListenError, bind, new_event_loop, serve
from openinfer_testing import wait_until


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


MESSAGES = [{"role": "user", "content": "Hi"}]


def test_sdk_completions(sdk):
    completion = sdk.completions.create(model="tiny", prompt=["Hi", "Hey"], n=2, logprobs=1)
    assert [choice.text for choice in completion.choices] == ["Hello"] * 4
    assert completion.usage.prompt_tokens_details.cached_tokens == 6
    assert completion.choices[0].logprobs.token_logprobs == [-0.5] * 6
    chunks = list(
        sdk.completions.create(
            model="tiny", prompt="Hi", stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "Hello"
    assert chunks[-1].usage.total_tokens == 8


def test_sdk_chat(sdk):
    chat = sdk.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    assert chat.choices[0].message.content == "Hello"
    assert chat.choices[0].finish_reason == "stop"
    assert bytes(b for t in chat.choices[0].logprobs.content[:5] for b in t.bytes) == b"Hello"
    with sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_sdk_models_and_errors(sdk, engine):
    assert [model.id for model in sdk.models.list()] == ["tiny", "other"]
    assert sdk.models.retrieve("other").id == "other"
    with pytest.raises(openai.NotFoundError) as not_found:
        sdk.completions.create(model="nope", prompt="Hi")
    assert not_found.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature"
    engine.dead = "the engine is restarting"
    with pytest.raises(openai.InternalServerError) as dead:
        sdk.completions.create(model="tiny", prompt="Hi")
    assert dead.value.status_code == 503


def test_closing_the_connection_aborts(start, make_app, fakes):
    engine = fakes.FakeEngine()
    server = start(make_app(engine))
    host, port = server.socket.getsockname()
    for stream in (True, False):
        body = json.dumps({"prompt": "Hi", "stream": stream}).encode()
        with socket.create_connection((host, port)) as peer:
            peer.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            wait_until(lambda: engine.live, timeout_s=5)
            server.call(engine.emit, "x")
            if stream:
                peer.recv(1000)
        wait_until(lambda: engine.aborted, timeout_s=5)
        engine.aborted.clear()
        assert not engine.live


def test_keep_alive_carries_many_requests(start, app, engine):
    server = start(app)
    with httpx.Client(base_url=server.url) as client:
        for _ in range(20):
            assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
            with client.stream("POST", "/v1/completions", json={"prompt": "Hi", "stream": True}):
                pass
    assert not engine.aborted


def test_a_signal_drains(make_app, fakes):
    """Signals arrive in the main thread, so the clients run in a thread of their own."""
    engine = fakes.FakeEngine()
    # The head of a response comes with the first token, which must not wait for the client.
    engine.script = lambda _: ["He"]
    app = make_app(engine)
    sock = bind("127.0.0.1", 0)
    sock.listen()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    seen = SimpleNamespace()

    def clients(loop):
        with (
            httpx.Client(base_url=url, timeout=10) as client,
            client.stream(
                "POST", "/v1/completions", json={"prompt": "Hi", "stream": True}
            ) as running,
        ):
            lines = running.iter_lines()
            seen.first = next(lines)
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: httpx.get(url + "/ready").status_code == 503, timeout_s=5)
            seen.health = httpx.get(url + "/health").status_code
            seen.refused = httpx.post(url + "/v1/completions", json={"prompt": "a"})
            loop.call_soon_threadsafe(engine.emit, "llo")
            loop.call_soon_threadsafe(engine.emit, Finished(reason="length"))
            seen.rest = list(lines)

    async def main():
        failed = asyncio.Event()
        thread = asyncio.create_task(asyncio.to_thread(clients, asyncio.get_running_loop()))
        thread.add_done_callback(lambda task: task.exception() and failed.set())
        await serve(app, [sock], stop=failed, drain_timeout_s=5)
        await thread

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
    assert "He" in seen.first
    assert seen.health == 200
    assert seen.refused.status_code == 503
    assert seen.refused.headers["retry-after"]
    assert "data: [DONE]" in seen.rest
    assert not engine.aborted


def test_unfinished_requests_are_cut_off(start, make_app, fakes):
    engine = fakes.FakeEngine()
    server = start(make_app(engine), drain_timeout_s=0.05)
    host, port = server.socket.getsockname()
    with socket.create_connection((host, port)) as peer:
        body = b'{"prompt":"Hi"}'
        peer.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n" + body
        )
        wait_until(lambda: engine.live, timeout_s=5)
        server.stop()
        server.join()
    assert not engine.live


def test_on_drain_is_called_when_a_drain_begins(start, make_app, fakes):
    engine, told = fakes.FakeEngine(), []
    engine.script = lambda _: ["He"]
    server = start(make_app(engine), on_drain=lambda: told.append(len(engine.live)))
    with (
        httpx.Client(base_url=server.url, timeout=10) as client,
        client.stream("POST", "/v1/completions", json={"prompt": "Hi", "stream": True}) as running,
    ):
        lines = running.iter_lines()
        assert "He" in next(lines)
        assert told == []
        server.stop()
        wait_until(lambda: told, timeout_s=5)
        server.call(engine.emit, Finished(reason="length"))
        assert "data: [DONE]" in list(lines)
    server.join()
    assert told == [1]


def test_a_port_that_is_in_use(start, app):
    server = start(app)
    host, port = server.socket.getsockname()[:2]
    with pytest.raises(ListenError, match="in use"):
        bind(host, port)


def test_a_port_that_was_taken_after_it_was_bound(app):
    mine, theirs = bind("127.0.0.1", 0), socket.socket()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with mine, theirs:
        theirs.bind(mine.getsockname())
        theirs.listen()
        with pytest.raises(ListenError, match="in use"):
            asyncio.run(serve(app, [mine]))


def test_addresses_that_cannot_be_listened_on():
    with pytest.raises(ListenError, match="no such address"):
        bind("no.such.host.invalid", 80)
    with pytest.raises(ListenError, match="no such address"):
        bind("203.0.113.1", 8000)


@pytest.mark.timed
def test_a_reader_that_stopped_loses_its_connection(start, fakes, make_app):
    engine = fakes.FakeEngine()
    server = start(make_app(engine, stall_timeout_s=0.2))
    # Token ids cost little CPU time per byte, so they fill the socket buffers quickly.
    fields = {"prompt": "Hi", "stream": True, "max_tokens": 400, "return_token_ids": True}
    body = json.dumps(fields).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(server.socket.getsockname())
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        sock.sendall(head % len(body) + body)
        until(lambda: engine.live)
        begun = time.monotonic()
        while engine.live:
            assert time.monotonic() - begun < 10
            taken = threading.Event()
            server.call(lambda: engine.live and engine.emit("x" * 2**14))
            server.call(taken.set)
            # On a busy machine the loop would never catch up without this pause.
            assert taken.wait(10)
            time.sleep(0.02)
        poll = select.poll()
        poll.register(sock, 0)
        # The client reads nothing, so a normal close would wait for it for ever.
        assert poll.poll(5000), "the connection is still there"


def test_a_body_that_does_not_arrive_ends_the_connection(start, make_app, engine):
    server = start(make_app(engine, body_timeout_s=0.05))
    with socket.create_connection(server.socket.getsockname(), timeout=5) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        answer = b""
        while part := sock.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"RequestTimeoutError" in answer


@pytest.mark.parametrize("is_streamed", [True, False])
def test_http_1_0_gets_no_chunks(start, make_app, fakes, is_streamed):
    """nginx speaks HTTP/1.0 to servers by default: the body ends at the close."""
    engine = fakes.FakeEngine()
    server = start(make_app(engine))
    body = json.dumps({"prompt": "Hi", "stream": is_streamed}).encode()
    with socket.create_connection(server.socket.getsockname(), timeout=5) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body))
        sock.sendall(body)
        wait_until(lambda: engine.live, timeout_s=5)
        for entry in ("H", "ell", "o", Finished(reason="length")):
            server.call(engine.emit, entry)
            time.sleep(0.05)
        answer = b""
        while part := sock.recv(4096):
            answer += part
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    if not is_streamed:
        assert f"content-length: {len(rest)}".encode() in head.lower()
        assert json.loads(rest)["choices"][0]["text"] == "Hello"
        return
    assert b"content-length" not in head.lower()
    events = [event.removeprefix(b"data: ") for event in rest.split(b"\n\n")]
    assert events[-2:] == [b"[DONE]", b""]
    texts = [json.loads(event)["choices"][0]["text"] for event in events[:-2]]
    assert texts == ["H", "ell", "o", ""]
