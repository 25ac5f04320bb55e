"""The operator's routes: aborts, pauses, traces, and routes that are not available."""

import asyncio
import os
import time

import httpx
import pytest

from openinfer_contract import (
    CommandDone,
    CommandFailed,
    Finished,
    Load,
    Pause,
    Resume,
    StartTrace,
    StopTrace,
)


@pytest.mark.parametrize("named", ["chatcmpl-r1", "r1", None])
def test_requests_are_aborted_by_id(make_app, fakes, named):
    engine = fakes.FakeEngine()
    app = make_app(engine)

    async def main():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:

            def ask(name):
                return asyncio.create_task(
                    client.post(
                        "/v1/chat/completions",
                        json={"messages": [{"role": "user", "content": "Hi"}], "n": 2},
                        headers={"x-request-id": name},
                    )
                )

            first, second = ask("r1"), ask("r2")
            await fakes.wait_for(lambda: len(engine.live) == 4)
            body = {"request_ids": [named, "nobody"]} if named else {"abort_all": True}
            aborted = (await client.post("/abort_requests", json=body)).json()["aborted"]
            answer = (await first).json()
            is_alone = not second.done()
            await client.post("/abort_requests", json={"abort_all": True})
            await second
            return aborted, answer, is_alone

    aborted, answer, is_alone = asyncio.run(main())
    assert aborted == (["chatcmpl-r1"] if named else ["chatcmpl-r1", "chatcmpl-r2"])
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["abort"] * 2
    if named:
        assert is_alone
    assert not engine.live
    assert not app._backend.live


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"request_id": "r1"}, "request_id"),
        ({"rid": "r1", "abort_all": True}, "rid"),
        ({"request_ids": None}, "request_ids"),
        ({}, "request_ids"),
        (None, "request_ids"),
        ({"abort_all": False}, "request_ids"),
        ({"abort_all": "yes"}, "abort_all"),
        ({"request_ids": ["r1"], "abort_all": True}, "request_ids"),
    ],
)
def test_an_ambiguous_abort_aborts_nothing(client_of, make_app, fakes, body, param):
    app = make_app(fakes.FakeEngine())
    app._backend.live["cmpl-r1"] = None  # would raise if the request had been aborted
    answer = client_of(app).post("/abort_requests", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert client_of(app).post("/abort_requests", {"request_ids": []}).json() == {"aborted": []}


def test_pause_and_resume(make_app, fakes, client_of):
    commands = ("get_load", "pause", "resume")
    engine = fakes.FakeEngine(commands=commands)
    client = client_of(make_app(engine))
    assert client.post("/pause?mode=keep", None).json() == {"is_paused": True}
    assert client.post("/pause", None).status_code == 200
    assert client.post("/resume", None).json() == {"is_paused": False}
    assert engine.commands == [Pause(mode="keep"), Pause(mode="wait"), Resume()]
    engine.results = [CommandDone(load=Load(is_paused=True))]
    assert client.get("/is_paused").json() == {"is_paused": True}
    refused = client.post("/pause?mode=now", None)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "mode")


def test_traces_are_started_and_stopped(make_app, fakes, client_of):
    engine = fakes.FakeEngine(commands=("start_trace", "stop_trace"))
    client = client_of(make_app(engine))
    engine.results = [CommandDone(message="/srv/traces/t.json")] * 3
    started = {"is_tracing": True, "file": "t.json"}
    assert client.post("/start_profile", None).json() == started
    assert client.post("/start_profile?kernels=true", None).json() == started
    stopped = {"is_tracing": False, "file": "t.json"}
    assert client.post("/stop_profile", None).json() == stopped
    assert engine.commands == [StartTrace(), StartTrace(has_kernels=True), StopTrace()]
    refused = client.post("/start_profile?kernels=perhaps", None)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "kernels")
    engine.results = [CommandFailed(kind="refused", message="no trace is being written")]
    refused = client.post("/stop_profile", None)
    assert (refused.status_code, refused.json()["error"]["type"]) == (409, "ConflictError")


def test_an_engine_that_cannot_trace(client):
    assert client.post("/start_profile", None).status_code == 501


def test_requests_are_added_to_a_running_trace(make_app, fakes, client_of, monkeypatch):
    engine = fakes.FakeEngine(commands=("add_spans",))
    engine.script = lambda request: ["Hi", Finished(reason="length")]
    client = client_of(make_app(engine))
    body = {"prompt": "x", "max_tokens": 4}
    client.post("/v1/completions", body, headers={"X-Request-Id": "before"})
    assert engine.commands == []
    monkeypatch.setattr(engine, "load", lambda: Load(is_tracing=True))
    before = time.monotonic()
    client.post("/v1/completions", body, headers={"X-Request-Id": "one"})
    client.get("/health")
    refused = client.post("/v1/completions", body | {"n": 0}, headers={"X-Request-Id": "bad"})
    assert refused.status_code == 400
    added, bad = engine.commands
    assert [part for part, _, _ in bad.spans] == ["/v1/completions", "first byte", "answer"]
    assert (added.key, added.pid, added.process) == ("one", os.getpid(), "front")
    (name, begin, end), *parts = added.spans
    assert name == "/v1/completions"
    assert [part for part, _, _ in parts] == ["read", "tokenize", "submit", "first byte", "answer"]
    times = [begin, *(at for _, at, _ in parts), end]
    assert times == sorted(times)
    assert [until for _, _, until in parts] == times[2:]
    assert before <= begin <= end <= time.monotonic()


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
def test_missing_routes_respond_501(client, path):
    response = client.post(path, {"lora_name": "x"})
    assert (response.status_code, response.headers["x-should-retry"]) == (501, "false")
    assert "not enabled" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/score", "/rerank", "/pooling", "/classify"])
def test_routes_for_other_models_respond_501(client, path):
    response = client.post(path, {"input": "Hi"})
    assert (response.status_code, response.headers["x-should-retry"]) == (501, "false")
    assert "generates text" in response.json()["error"]["message"]


def test_server_info_describes_the_server(client, engine):
    told = client.get("/server_info").json()
    assert (told["version"], told["served_model_names"]) == ("1.2", ["tiny", "other"])
    assert (told["tool_parser"], told["reasoning_parser"]) == (None, None)
    info = told["engine_info"]
    assert info["limits"]["max_model_len"] == engine.info.limits.max_model_len
    assert set(info["honoured"]) == engine.info.honoured
    assert info["vocab_size"] == 300


def test_an_engine_that_cannot_pause(client):
    assert client.post("/pause", None).status_code == 501


def test_timings_on_demand(client, engine):
    engine.is_paced = True
    body = client.complete("Hi", return_timings=True)
    timings = body["choices"][0]["timings"]
    assert set(timings) == {"queue_s", "prefill_s", "decode_s", "first_token_s", "total_s"}
    assert 0 <= timings["first_token_s"] <= timings["total_s"] < 60
    events = client.stream("/v1/completions", {"prompt": "Hi", "return_timings": True})
    assert "timings" in events[-1]["choices"][0]
    assert "timings" not in client.complete("Hi")["choices"][0]
    stopped = client.complete("Hi", return_timings=True, stop="l")
    assert stopped["choices"][0]["timings"]["decode_s"] is None


def test_a_body_may_name_its_request(client, engine):
    assert client.complete("Hi", request_id="mine")["id"] == "cmpl-mine"
    headers = {"X-Request-Id": "theirs"}
    response = client.post("/v1/completions", {"prompt": "Hi", "request_id": "m"}, headers=headers)
    assert response.json()["id"] == "cmpl-theirs"
    assert client.post("/v1/completions", {"prompt": "Hi", "request_id": "a b"}).status_code == 400


def test_a_command_that_times_out_stays_queued(make_app, fakes, client_of):
    engine = fakes.FakeEngine(commands=("pause",))
    engine.results = [None]
    response = client_of(make_app(engine, control_timeout_s=0.05)).post("/pause", None)
    assert response.status_code == 503
    assert "takes effect later" in response.json()["error"]["message"]
    assert "retry-after" not in response.headers, "a second one would be queued too"
