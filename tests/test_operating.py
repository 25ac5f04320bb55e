"""Health, load, pause, shutdown and cancellation of a real server, for operators and gateways."""

import asyncio
import json
import random
import socket
import struct
import threading
import time
import urllib.request
from urllib.parse import urlsplit

import psutil
import pytest
import trustme

from openinfer_testing import wait_until

HELLO = [{"role": "user", "content": "Hello!"}]
ENDLESS = {"model": "tiny", "prompt": "Once", "temperature": 0}


class _Reader(threading.Thread):
    """A thread that reads a stream to its end."""

    def __init__(self, server, max_tokens):
        super().__init__(daemon=True)
        self._stream = server.client.completions.create(
            **ENDLESS,
            max_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        self.num_chunks = 0
        self.finish_reason = self.usage = None
        self.start()

    def run(self):
        with self._stream:
            for chunk in self._stream:
                self.num_chunks += 1
                self.usage = chunk.usage
                for choice in chunk.choices:
                    self.finish_reason = choice.finish_reason or self.finish_reason

    def end(self):
        self.join(timeout=60)
        assert not self.is_alive()
        return self.finish_reason


@pytest.fixture
def paused(tiny_server):
    """Function that pauses the server. The fixture resumes it, even if the test fails."""

    def pause(mode):
        assert tiny_server.post(f"/pause?mode={mode}", None) == (200, {"is_paused": True})
        assert tiny_server.get("/is_paused") == (200, {"is_paused": True})

    yield pause
    assert tiny_server.post("/resume", None) == (200, {"is_paused": False})


def _resume(server):
    assert server.post("/resume", None) == (200, {"is_paused": False})
    assert server.get("/is_paused") == (200, {"is_paused": False})


def test_a_frozen_stream_goes_on_as_if_nothing_had_been(tiny_server, paused):
    reader = _Reader(tiny_server, 400)
    wait_until(lambda: reader.num_chunks > 20)
    paused("keep")
    time.sleep(0.1)
    num_chunks = reader.num_chunks
    time.sleep(0.3)
    assert reader.num_chunks == num_chunks < 400
    assert tiny_server.load()["num_running"] == 1
    _resume(tiny_server)
    assert reader.end() == "length"
    assert reader.usage.completion_tokens == 400


def test_a_pause_may_end_streams_and_keeps_what_comes(tiny_server, paused):
    reader = _Reader(tiny_server, 1500)
    wait_until(lambda: reader.num_chunks > 5)
    paused("abort")
    assert reader.end() == "abort"
    answers = []
    body = ENDLESS | {"max_tokens": 3}
    asked = threading.Thread(
        target=lambda: answers.append(tiny_server.post("/v1/completions", body)[0])
    )
    asked.start()
    wait_until(lambda: tiny_server.load()["num_waiting"])
    time.sleep(0.1)
    assert not tiny_server.load()["num_running"]
    assert not answers
    _resume(tiny_server)
    asked.join(timeout=30)
    assert answers == [200]


def test_a_pause_may_wait_for_streams(tiny_server, paused):
    reader = _Reader(tiny_server, 300)
    wait_until(lambda: reader.num_chunks > 5)
    paused("wait")
    assert reader.end() == "length"
    assert reader.usage.completion_tokens == 300


def test_what_a_pause_cannot_be_is_named(tiny_server):
    status, body = tiny_server.post("/pause?mode=nap", None)
    assert (status, body["error"]["param"]) == (400, "mode")
    assert tiny_server.get("/is_paused") == (200, {"is_paused": False})


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
def test_adapters_are_not_enabled(tiny_server, path):
    status, body = tiny_server.post(path, {"lora_name": "x", "lora_path": "y"})
    assert (status, body["error"]["type"]) == (501, "NotImplementedError")
    assert "not enabled" in body["error"]["message"]


def test_the_server_describes_itself(tiny_server):
    status, description = tiny_server.get("/openapi.json")
    assert status == 200
    assert description["openapi"].startswith("3.")
    status, page = tiny_server.fetch("GET", "/docs")
    assert status == 200
    for path in description["paths"]:
        assert path in page.decode()


def test_the_last_message_is_continued(tiny_server):
    messages = [*HELLO, {"role": "assistant", "content": "Hello! How can"}]
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    body = {"model": "tiny", "messages": messages} | fields
    status, rendered = tiny_server.post("/v1/chat/completions/render", body)
    assert status == 200
    assert rendered["prompt"].endswith("Hello! How can")
    answer = tiny_server.client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=8, extra_body=fields
    )
    assert answer.usage.prompt_tokens == len(rendered["token_ids"])
    ids = rendered["token_ids"]
    same = tiny_server.client.completions.create(
        model="tiny", prompt=ids, temperature=0, max_tokens=8
    )
    assert answer.choices[0].message.content == same.choices[0].text
    status, refused = tiny_server.post(
        "/v1/chat/completions", body | {"add_generation_prompt": True}
    )
    assert (status, refused["error"]["param"]) == (400, "continue_final_message")


def test_where_the_time_went(tiny_server):
    create = tiny_server.client.completions.create
    fields = {"model": "tiny", "prompt": "Once", "max_tokens": 5, "temperature": 0}
    extra = {"ignore_eos": True, "return_timings": True}
    whole = create(**fields, extra_body=extra).choices[0].model_extra["timings"]
    with create(**fields, extra_body=extra, stream=True) as stream:
        streamed = [choice for chunk in stream for choice in chunk.choices]
    found = [choice.model_extra.get("timings") for choice in streamed]
    assert [bool(each) for each in found] == [bool(each.finish_reason) for each in streamed]
    for timings in (whole, found[-1]):
        assert 0 <= timings["queue_s"] <= timings["first_token_s"] <= timings["total_s"] < 30
        assert 0 < timings["prefill_s"] + timings["decode_s"] < timings["total_s"]
    assert "timings" not in create(**fields).choices[0].model_extra


@pytest.mark.parametrize("is_chat", [True, False])
def test_usage_on_every_chunk(tiny_server, is_chat):
    client = tiny_server.client
    asked = {"messages": HELLO} if is_chat else {"prompt": "Hello!"}
    create = client.chat.completions.create if is_chat else client.completions.create
    options = {"include_usage": True, "continuous_usage_stats": True}
    extra = {"ignore_eos": True}
    with create(
        model="tiny", **asked, max_tokens=6, stream=True, stream_options=options, extra_body=extra
    ) as stream:
        usages = [chunk.usage for chunk in stream]
    counts = [usage.completion_tokens for usage in usages]
    assert counts == sorted(counts)
    assert counts[-2:] == [6, 6]
    assert {usage.prompt_tokens for usage in usages} == {usages[-1].prompt_tokens}
    assert all(u.total_tokens == u.prompt_tokens + u.completion_tokens for u in usages)


def test_no_page_of_another_origin_may_read(tiny_server):
    headers = {"origin": "https://example.org", "access-control-request-method": "POST"}
    for method in ("GET", "OPTIONS"):
        request = urllib.request.Request(
            tiny_server.url + "/v1/models", headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                answered = response.headers
        except urllib.error.HTTPError as error:
            with error:
                answered = error.headers
        assert not [name for name in answered if name.lower().startswith("access-control")]


def test_https_origins_and_templates_by_flags(start_server, tmp_path, monkeypatch):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    ours = authority.issue_cert("127.0.0.1")
    ours.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    ours.private_key_pem.write_to_path(tmp_path / "key.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    server = start_server(
        *("--ssl-certfile", str(tmp_path / "cert.pem"), "--ssl-keyfile", str(tmp_path / "key.pem")),
        *("--allowed-origins", "https://example.org", "--trust-request-chat-template"),
    )
    assert server.url.startswith("https://")
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 2}
    foreign = {
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}",
        "chat_template_kwargs": {"mood": "!"},
    }
    render = "/v1/chat/completions/render"
    assert server.post(render, body | foreign)[1]["prompt"] == "Hello!!"
    assert server.post("/v1/chat/completions", body | foreign)[0] == 200
    status, refused = server.post(render, body | {"chat_template": "\n{{ 1/0 }}"})
    assert (status, refused["error"]["param"]) == (400, "chat_template")
    assert "line 2" in refused["error"]["message"]
    for origin, allowed in (
        ("https://example.org", "https://example.org"),
        ("https://e.org", None),
    ):
        request = urllib.request.Request(server.url + "/v1/models", headers={"origin": origin})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.headers["access-control-allow-origin"] == allowed
    with pytest.raises(OSError), socket.create_connection(_address(server)) as plain:  # noqa: PT012
        plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        if b"200" not in plain.recv(100):
            raise ConnectionError("it speaks TLS alone")
    server.assert_idle()
    assert server.stop() == 0


def _address(server):
    parts = urlsplit(server.url)
    return parts.hostname, parts.port


def test_a_thousand_hang_ups_leave_nothing_behind(tiny_server):
    """Files, threads and memory of the front process and the engine do not grow."""
    front, engine, rng = (
        psutil.Process(tiny_server.process.pid),
        tiny_server.engine,
        random.Random(7),
    )

    async def leave(limit):
        body = {"model": "tiny", "max_tokens": 500, "ignore_eos": True, "prompt": "Once"}
        body |= {"messages": HELLO, "stream": rng.random() < 0.7}
        payload = json.dumps(body).encode()
        path = rng.choice(["/v1/completions", "/v1/chat/completions", "/v1/messages"])
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n"
        data = head.encode() + payload
        async with limit:
            reader, writer = await asyncio.open_connection(*_address(tiny_server))
            writer.write(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)
            try:
                async with asyncio.timeout(rng.random() * 0.05):
                    await reader.read(rng.randrange(1, 2000))
            except (TimeoutError, ConnectionError):
                pass
            if rng.random() < 0.5:
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()

    async def crowd(count):
        limit = asyncio.Semaphore(50)
        await asyncio.gather(*(leave(limit) for _ in range(count)))

    asyncio.run(crowd(200))
    tiny_server.assert_idle()
    held = front.num_fds(), front.num_threads(), engine.num_fds(), engine.num_threads()
    memory = front.memory_info().rss + engine.memory_info().rss
    asyncio.run(crowd(1000))
    tiny_server.assert_idle()

    def holds():
        return front.num_fds(), front.num_threads(), engine.num_fds(), engine.num_threads()

    wait_until(lambda: all(now <= before for now, before in zip(holds(), held, strict=True)))
    assert front.memory_info().rss + engine.memory_info().rss < memory + (24 << 20)
