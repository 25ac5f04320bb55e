"""Routes and error objects of the application."""

import asyncio
import json
import logging
import re

import pytest

from openinfer_contract import CommandFailed, EngineDead
from openinfer_frontend import FrontendConfig, create_app
from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols.anthropic._messages_request import MessagesRequest
from openinfer_frontend.protocols.openai._chat_request import ChatRequest
from openinfer_frontend.protocols.openai._completion_request import CompletionRequest
from openinfer_frontend.protocols.openai._token_requests import TokenizeRequest
from openinfer_frontend.protocols.responses._responses_request import ResponsesRequest


def error_of(response):
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == response.status_code
    return body["error"]


def test_unknown_routes_and_methods(client):
    assert error_of(client.get("/nowhere"))["type"] == "NotFoundError"
    response = client.get("/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    error_of(response)


def test_head_is_answered_as_get(client):
    assert client.request("HEAD", "/health").status_code == 200


def test_unknown_model(client, engine):
    for path, body in (
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/tokenize", {"prompt": "Hi"}),
    ):
        error = error_of(client.post(path, body | {"model": "nope"}))
        assert all(name in error["message"] for name in ("`nope`", "`tiny`", "`other`"))
        assert (error["param"], error["code"]) == ("model", 404)
    assert not engine.requests


def test_an_unknown_route_is_named(client):
    error = error_of(client.get("/v1/modles" + "s" * 999))
    assert error["code"] == 404
    assert error["message"].startswith("there is no route /v1/modless")
    assert len(error["message"]) < 300


def test_at_debug_every_request_has_a_line(client, engine, caplog):
    caplog.set_level(logging.DEBUG, "openinfer_frontend")
    client.request("GET", "/health", headers={"x-request-id": "mine"})
    client.complete("Hi", request_id="given")
    client.get("/a%0Ab")
    client.request("POST", "/v1/completions", json={"prompt": "Hi", "n": 0})
    lines = [re.sub(r"\d+\.\d{3} s", "T", record.getMessage()) for record in caplog.records]
    assert lines[:3] == [
        "GET /health 200 in T, request mine",
        "POST /v1/completions 200 in T, request given",
        f"GET /a%0Ab 404 in T, request {lines[2].rpartition(' ')[2]}",
    ]
    assert lines[3].startswith("POST /v1/completions 400 in T, request ")
    caplog.clear()
    caplog.set_level(logging.INFO, "openinfer_frontend")
    client.get("/health")
    assert not caplog.records


@pytest.mark.parametrize(
    ("stop", "words"),
    [(["x"] * 65, "at most 64 strings of .* the list has 65"), ("x" * 1025, "1024"), (3, "string")],
)
def test_an_error_for_too_many_stops_names_their_number(client, stop, words):
    error = error_of(client.post("/v1/completions", {"prompt": "Hi", "stop": stop}))
    assert (error["param"], error["code"]) == ("stop", 400)
    assert re.search(words, error["message"])


def test_every_served_name_works_and_is_echoed(client):
    assert client.complete("Hi", model="other")["model"] == "other"
    assert client.complete("Hi")["model"] == "tiny"


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", {}, 400),
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"null", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b'{"prompt":"\\ud800"}', {}, 400),
        (b"{}", {}, 400),
        (b'{"prompt":"Hi"}', {"content-type": "text/plain"}, 400),
        (b'{"prompt":"Hi"}', {"content-type": "Application/JSON; charset=utf-8"}, 200),
        (b'{"prompt":"' + b"x" * 4000 + b'"}', {}, 413),
        (b'{"prompt":' + b"[" * 1000, {}, 400),
    ],
)
def test_invalid_bodies(engine, make_app, client_of, content, headers, status):
    client = client_of(make_app(engine, max_body_bytes=2000))
    response = client.request("POST", "/v1/completions", content=content, headers=headers)
    assert response.status_code == status, response.text
    if status != 200:
        error_of(response)
        assert len(response.content) < 800
        assert not engine.requests


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (rb'{"model":"tiny","prompt":["Hi","\ud800"]}', "prompt"),
        (rb'{"prompt":"Hi","stop":"\ude00"}', "stop"),
        (rb'{"a":{"\ud800":1}}', "a"),
        (rb'{"\ud800":1}', None),
        (rb'["\ud800"]', None),
        (b'{"prompt":' + b"[" * 150 + rb'"\ud800"' + b"]" * 150 + b"}", "prompt"),
        (rb'{"prompt":"\ud800","a":"' + b"x" * (1 << 20) + b'"}', None),
    ],
)
def test_half_a_surrogate_pair_is_named(client, content, param):
    error = error_of(client.request("POST", "/v1/completions", content=content))
    assert (error["code"], error["param"]) == (400, param)
    assert "half of a surrogate pair" in error["message"]


@pytest.mark.parametrize("content", [b"[]", b"null", b'"x"', b"3"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"])
def test_a_body_that_is_no_object(client, path, content):
    headers = {"content-type": "application/json"}
    error = client.request("POST", path, content=content, headers=headers).json()["error"]
    assert error["message"] == "the body must be a JSON object"


def test_a_body_without_length_is_bounded_too(engine, make_app, client_of):
    async def chunks():
        for _ in range(10):
            yield b"x" * 1000

    client = client_of(make_app(engine, max_body_bytes=2000))
    assert client.request("POST", "/v1/completions", content=chunks()).status_code == 413


def test_request_ids_are_echoed(client):
    headers = {"X-Request-Id": "abc-1"}
    response = client.post("/v1/completions", {"prompt": "Hi"}, headers=headers)
    assert response.headers["x-request-id"] == "abc-1"
    assert response.json()["id"] == "cmpl-abc-1"
    assert client.get("/nowhere").headers["x-request-id"]
    headers = {"X-Request-Id": "a" * 129}
    assert client.post("/v1/completions", {"prompt": "Hi"}, headers=headers).status_code == 400


def test_models(client):
    body = client.get("/v1/models").json()
    assert [m["id"] for m in body["data"]] == ["tiny", "other"]
    assert body["data"][0]["max_model_len"] == 512
    assert client.get("/v1/models/other").json()["root"] == "tiny"
    assert error_of(client.get("/v1/models/nope"))["param"] == "model"


def test_version_and_openapi(client):
    assert client.get("/version").json() == {"version": "1.2"}
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/health"} <= set(paths)


def test_load_is_exact(client, engine):
    body = client.get("/load").json()
    assert body["num_total_blocks"] == 4
    assert body["is_idle"] is True
    assert (body["cache_groups"], body["num_dropped_kv_event_batches"]) == ([], 0)
    assert type(engine.commands[0]).__name__ == "GetLoad"


def test_cache_reset(client, engine):
    assert client.post("/reset_prefix_cache", None).status_code == 200
    assert type(engine.commands[0]).__name__ == "ResetPrefixCache"


def test_a_dead_engine_is_a_503(client, engine):
    engine.dead = "the engine process ended"
    response = client.post("/v1/completions", {"prompt": ["a", "b"]})
    assert error_of(response)["message"] == "the engine process ended"
    assert response.headers["retry-after"] == "1"


def test_a_restarting_engine_is_a_503(text, client_of):
    class Restarting:
        state = "restarting"

        def handle(self):
            raise EngineDead("the engine is restarting")

    client = client_of(
        create_app(Restarting(), text, FrontendConfig(served_model_names=("m",), version="1"))
    )
    for response in (
        client.get("/health"),
        client.get("/ping"),
        client.get("/ready"),
        client.get("/load"),
        client.get("/v1/models"),
        client.post("/v1/completions", {"prompt": "Hi"}),
        client.post("/tokenize", {"prompt": "Hi"}),
    ):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        error_of(response)


def test_draining_refuses_new_requests(client, app):
    assert client.get("/ready").status_code == 200
    app.start_draining()
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == client.get("/ping").status_code == 200
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 503


def test_internal_errors_are_a_500_without_details(client, engine, caplog):
    def script(request):
        raise RuntimeError("secret")

    engine.script = script
    with caplog.at_level(logging.ERROR):
        response = client.post("/v1/completions", {"prompt": "Hi"})
    assert error_of(response) == {
        "message": "internal error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    assert "secret" in caplog.text


def test_tokenize_and_detokenize(client, text):
    body = client.post("/tokenize", {"prompt": "Hé", "return_token_strs": True}).json()
    assert body["count"] == 3
    assert body["tokens"] == list("Hé".encode())
    assert body["max_model_len"] == 512
    assert body["token_strs"][0] == "H"
    assert client.post("/tokenize", {"prompt": ""}).json()["tokens"] == []
    messages = [{"role": "user", "content": "Hi"}]
    body = client.post("/tokenize", {"messages": messages, "tools": []}).json()
    assert body["token_strs"] is None
    prompt = client.post("/detokenize", {"tokens": body["tokens"]}).json()["prompt"]
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert client.post("/tokenize", {}).status_code == 400
    assert client.post("/tokenize", {"prompt": "a", "messages": messages}).status_code == 400
    assert client.post("/detokenize", {"tokens": [2**32]}).status_code == 400


def test_ids_that_the_model_does_not_have_decode_to_nothing(client):
    answer = client.post("/detokenize", {"tokens": [72, 300, 151_643, 2**32 - 1, 105]})
    assert (answer.status_code, answer.json()) == (200, {"prompt": "Hi"})


@pytest.mark.parametrize(
    "model", [ChatRequest, CompletionRequest, MessagesRequest, ResponsesRequest, TokenizeRequest]
)
def test_unknown_fields_are_dropped_once_a_body_is_checked(model):
    known = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "model": "m"}
    if model in (CompletionRequest, ResponsesRequest):
        known = {"prompt" if model is CompletionRequest else "input": "Hi"}
    refused = next(iter(model.UNSUPPORTED))
    body = known | {"padding": [[]] * 1000, refused: [1]}
    request = model.model_validate_json(json.dumps(body))
    assert request.model_extra == {refused: [1]}
    with pytest.raises(ApiError, match=refused):
        request.refuse_unsupported()


def test_a_prompt_of_a_million_ids_fits_into_a_body():
    body = json.dumps({"prompt": [151_643] * 1_048_576})
    assert len(body) < FrontendConfig(served_model_names=("m",), version="1").max_body_bytes


def test_long_prompts_are_processed_in_a_thread(engine, make_app, client_of, text, monkeypatch):
    import threading

    threads = []
    encode = text.encode

    def spy(*args, **kwargs):
        threads.append(threading.current_thread().name)
        return encode(*args, **kwargs)

    monkeypatch.setattr(text, "encode", spy)
    client = client_of(make_app(engine, max_inline_bytes=100))
    client.complete("short")
    client.complete("long" * 50)
    assert threads[0] == "MainThread"
    assert threads[1].startswith("openinfer-text")


def test_prompts_of_ids_stay_on_the_event_loop(engine, make_app, client_of, monkeypatch):
    def no_thread(*args):
        pytest.fail("a thread was asked to pack ids")

    monkeypatch.setattr(
        "openinfer_frontend.generation._text_work.ThreadPoolExecutor.submit", no_thread
    )
    client = client_of(make_app(engine, max_inline_bytes=100))
    assert client.complete([7] * 500)["usage"]["prompt_tokens"] == 500


def test_other_scopes_are_refused(app):
    coroutine = app({"type": "lifespan"}, None, None)
    with pytest.raises(ValueError, match="lifespan"):
        coroutine.send(None)


def test_errors_never_echo_long_inputs(client):
    huge = json.dumps({"prompt": "Hi", "stop": {"x" * 5000: 1}, "n": "y" * 5000})
    response = client.request("POST", "/v1/completions", content=huge)
    assert response.status_code == 400
    assert len(response.content) < 800


def test_commands_that_do_not_work(engine, fakes, make_app, client_of):
    client = client_of(make_app(engine, control_timeout_s=0.02))
    engine.results = [CommandFailed(kind="failed", message="the cache is busy"), None]
    response = client.post("/reset_prefix_cache", None)
    assert (response.status_code, error_of(response)["message"]) == (500, "the cache is busy")
    assert client.post("/reset_prefix_cache", None).status_code == 503
    client = client_of(make_app(fakes.FakeEngine(commands=())))
    assert client.post("/reset_prefix_cache", None).status_code == 501
    assert client.get("/load").json()["num_total_blocks"] == 4


def test_a_body_announced_too_large_is_not_read(engine, make_app):
    sent = []

    async def receive():
        pytest.fail("the body was read")

    async def send(message):
        sent.append(message)

    headers = [(b"content-length", b"2001")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    asyncio.run(make_app(engine, max_body_bytes=2000)(scope, receive, send))
    assert sent[0]["status"] == 413


@pytest.mark.parametrize("ending", ["slow", "gone"])
def test_a_body_that_does_not_arrive(engine, make_app, ending):
    sent = []

    async def receive():
        if ending == "gone":
            return {"type": "http.disconnect"}
        await asyncio.sleep(5)
        return None

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    asyncio.run(make_app(engine, body_timeout_s=0.02)(scope, receive, send))
    assert [m["status"] for m in sent[:1]] == ([408] if ending == "slow" else [])


@pytest.mark.parametrize(
    "settings",
    [
        {"served_model_names": ()},
        {"max_body_bytes": 0},
        {"stall_timeout_s": 0},
        {"request_timeout_s": 0},
        {"request_timeout_s": float("inf")},
        {"reasoning_field": "x"},
    ],
)
def test_invalid_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        FrontendConfig(**{"served_model_names": ("m",), "version": "1"} | settings)
