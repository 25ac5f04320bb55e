"""Clients that disconnect at any moment leave no state on the server."""

import asyncio
import json
import random
import socket
import struct
import time
import urllib.request
from concurrent.futures import Future

import psutil
import pytest

NUM_CLIENTS = 1000
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
MESSAGES = [{"role": "user", "content": "Hi"}]


def _request(path, is_streaming):
    body = {"model": "tiny", "prompt": "Hi", "input": "Hi", "messages": MESSAGES}
    payload = json.dumps(body | {"stream": is_streaming, "max_tokens": 99}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


async def _leave(address, rng, limit):
    """Sends part of a request, reads part of the response, and disconnects in one of two ways."""
    async with limit:
        reader, writer = await asyncio.open_connection(*address)
        data = _request(rng.choice(PATHS), rng.random() < 0.7)
        writer.write(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)
        if rng.random() < 0.6:
            try:
                async with asyncio.timeout(rng.random() * 0.05):
                    await reader.read(rng.randrange(1, 2000))
            except TimeoutError:
                pass
        if rng.random() < 0.5:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()


def _ask(server, function):
    """Runs a function on the server's event loop, and returns its result."""
    answer = Future()
    server.call(lambda: answer.set_result(function()))
    return answer.result(timeout=10)


@pytest.mark.parametrize("is_answering", [True, False])
def test_a_thousand_disconnects(start, make_app, fakes, is_answering):
    engine = fakes.FakeEngine()
    # The script has no end, so the requests run until they are aborted.
    engine.script = lambda request: ["He", "l"] if is_answering else []
    app = make_app(engine)
    server = start(app)
    address = server.socket.getsockname()
    process, rng = psutil.Process(), random.Random(is_answering)

    async def crowd(count):
        limit = asyncio.Semaphore(100)
        await asyncio.gather(*(_leave(address, rng, limit) for _ in range(count)))

    def exchanges():
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks(server._loop)]
        return [name for name in names if "HttpExchange" in name or "run_asgi" in name]

    def left():
        """Returns the server's state that belongs to these clients; runs on its event loop."""
        state = exchanges(), engine.live, dict(app._backend.live)
        return [each for each in (*state, app.num_in_flight, app._bodies.num_bytes) if each]

    def settle():
        """Returns when the server has no state of these clients.

        Connections are accepted in turn: a response to this client means that all others were
        accepted.
        """
        with urllib.request.urlopen("http://{}:{}/health".format(*address), timeout=30) as answer:
            answer.read()
        deadline = time.monotonic() + 10
        while found := _ask(server, left):
            assert time.monotonic() < deadline, found
            time.sleep(0.01)

    asyncio.run(crowd(50))
    settle()
    num_fds, num_threads = process.num_fds(), process.num_threads()
    asyncio.run(crowd(NUM_CLIENTS // 2))
    settle()
    assert len(engine.requests) > NUM_CLIENTS // 20

    deadline = time.monotonic() + 10
    while process.num_fds() > num_fds:
        assert time.monotonic() < deadline, "connections are left"
        time.sleep(0.01)
    assert process.num_threads() <= num_threads
    # A connection that was accepted late may have begun a request since.
    settle()
