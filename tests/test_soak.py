"""A server under many kinds of load and faults at once: afterwards it is idle and leaks nothing.

Takes one minute. `OPENINFER_SOAK_S=900 pytest -m slow tests/test_soak.py -o timeout=1200` takes a
quarter of an hour.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter

import httpx
import psutil
import pytest

SOAK_S = float(os.environ.get("OPENINFER_SOAK_S", "60"))
NUM_CLIENTS = 24
MAX_GROWTH_BYTES = 24 << 20
HELLO = [{"role": "user", "content": "Hello!"}]
BODIES = [
    ("/v1/completions", {"prompt": "Once upon a time"}),
    ("/v1/completions", {"prompt": ["One", "Two"], "n": 2, "logprobs": 1}),
    ("/v1/chat/completions", {"messages": HELLO}),
    ("/v1/responses", {"input": "Hello!"}),
    ("/v1/messages", {"messages": HELLO}),
]
MALFORMED = [
    b"",
    b"{",
    b'{"prompt": 3}',
    b'{"messages": [{"role": "boss"}], "max_tokens": 1}',
    b"\xff\x00" * 99,
    b'{"model": "nothing", "prompt": "x"}',
    b"[" * 5000,
]


async def _client(client, rng, until, seen):
    while time.monotonic() < until:
        kind = rng.random()
        try:
            if kind < 0.2:
                path = rng.choice(BODIES)[0]
                response = await client.post(path, content=rng.choice(MALFORMED))
                seen[response.status_code] += 1
                assert response.status_code in (400, 404, 503), response.text
            elif kind < 0.55:
                await _stream(client, rng, seen)
            else:
                path, body = rng.choice(BODIES)
                most = rng.randrange(1, 60)
                fields = {"model": "tiny", "max_tokens": most, "max_output_tokens": most}
                response = await client.post(path, json=body | fields)
                seen[response.status_code] += 1
                was_aborted = "the request was aborted" in response.text
                assert was_aborted or response.status_code in (200, 503), response.text
        except (httpx.TimeoutException, httpx.RemoteProtocolError) as error:
            seen[type(error).__name__] += 1
        if rng.random() < 0.02:
            await client.post("/abort_requests", json={"abort_all": True})
        if seen[503]:
            # While the engine restarts, a pause saves needless requests.
            await asyncio.sleep(0.05)


async def _stream(client, rng, seen):
    """Reads a stream to its end, or disconnects in the middle."""
    path, body = rng.choice(BODIES)
    fields = {"model": "tiny", "max_tokens": 80, "max_output_tokens": 80, "stream": True}
    async with client.stream("POST", path, json=body | fields) as response:
        seen[response.status_code] += 1
        assert response.status_code in (200, 400, 503)
        patience = rng.choice([0, 1, 3, 10_000])
        async for _ in response.aiter_bytes():
            patience -= 1
            if patience < 0:
                seen["left"] += 1
                return


async def _soak(server, seen):
    begun = time.monotonic()
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    front = psutil.Process(server.process.pid)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
        clients = [
            asyncio.create_task(_client(client, random.Random(i), begun + SOAK_S, seen))
            for i in range(NUM_CLIENTS)
        ]
        await asyncio.sleep(SOAK_S * 0.3)
        engine = server.engine
        early = front.memory_info().rss
        await asyncio.sleep(SOAK_S * 0.1)
        engine.send_signal(signal.SIGKILL)
        await asyncio.gather(*clients)
    return early


@pytest.mark.slow
def test_soak(start_server):
    server = start_server("--max-num-seqs", "8", "--max-num-queued-reqs", "32")
    front, seen = psutil.Process(server.process.pid), Counter()
    early = asyncio.run(_soak(server, seen))
    deadline = time.monotonic() + 30
    while server.get("/ready")[0] != 200:
        assert time.monotonic() < deadline, "the engine is not back"
        time.sleep(0.05)
    server.assert_idle()
    load = server.load()
    assert load["num_free_blocks"] + load["num_evictable_blocks"] == load["num_total_blocks"]
    assert seen[200] > 2 * SOAK_S
    assert seen[400]
    assert seen["left"], seen
    grown = front.memory_info().rss - early
    assert grown < MAX_GROWTH_BYTES, f"the front process has grown by {grown / 1e6:.1f} MB"
    connections = [c for c in front.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
    assert len(connections) <= 1, connections
    assert not any("Traceback" in line for line in server.log), server.log[-40:]
    print(f"soak of {SOAK_S:.0f} s: {dict(seen)}, front grew by {grown / 1e6:.1f} MB")
