"""Counts of refusals, of HTTP requests and of searches for tool calls."""

import pytest

from openinfer_contract import Failed, Finished, Rejected

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def test_refusals_by_their_reason(client, app, engine, scrape):
    body = {"prompt": "Hi"}
    rejected = [
        Rejected(kind="overloaded", message="full"),
        Rejected(kind="draining", message="going"),
        Rejected(kind="too_long", message="long"),
    ]
    engine.script = lambda request: [rejected.pop(0)]
    assert [client.post("/v1/completions", body).status_code for _ in range(3)] == [503, 503, 400]
    assert scrape().refusals == {"queue_full": 1, "draining": 1}
    engine.dead = "it fell"
    assert client.post("/v1/completions", body).status_code == 503
    assert client.post("/v1/messages", {"prompt": "Hi"}).status_code == 400
    app.start_draining()
    assert client.post("/tokenize", body).status_code == 503
    page = scrape()
    assert page.refusals == {"queue_full": 1, "draining": 2, "engine_unavailable": 1}
    assert page.ends == {"stop": 0, "length": 0, "abort": 0, "error": 0}, "none of them ran"
    status = {"handler": "/v1/completions", "method": "POST"}
    assert page.http("http_requests_total", status="5xx", **status) == 3
    assert page.http("http_requests_total", status="4xx", **status) == 1


def test_refusals_for_lack_of_room(engine, make_app, client_of, page_of):
    client = client_of(make_app(engine, max_pending_body_bytes=10))
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 503
    assert page_of(client).refusals == {"pending_bodies": 1}
    app = make_app(engine, max_in_flight=1)
    app._backend.num_in_flight = 1
    client = client_of(app)
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 503
    assert page_of(client).refusals == {"max_in_flight": 1}


def test_probes_are_not_counted_and_unknown_paths_share_a_line(client, scrape):
    for path in ("/health", "/ping", "/ready", "/version", "/load", "/metrics"):
        client.get(path)
    client.get("/nowhere")
    client.get("/nowhere/else")
    client.get("/v1/models/a/b")
    client.request("HEAD", "/v1/models")
    client.request("BREW", "/v1/models")
    page = scrape()
    samples = page.families["http_requests"].samples
    assert {tuple(sorted(sample.labels.items())): sample.value for sample in samples} == {
        (("handler", "none"), ("method", "GET"), ("status", "4xx")): 2,
        (("handler", "/v1/models/{id}"), ("method", "GET"), ("status", "4xx")): 1,
        (("handler", "/v1/models"), ("method", "HEAD"), ("status", "2xx")): 1,
        (("handler", "none"), ("method", "other"), ("status", "4xx")): 1,
    }


def test_searches_for_tool_calls(engine, make_app, client_of, tool_text, say, page_of):
    client = client_of(make_app(engine, text=tool_text))
    say(CALL)
    client.chat("Hi", tools=[TOOL])
    client.chat("Hi", tools=[TOOL], n=2)
    user = {"messages": [{"role": "user", "content": "Hi"}]}
    client.stream("/v1/chat/completions", user | {"tools": [TOOL]})
    say("Nothing")
    client.chat("Hi", tools=[TOOL])
    client.chat("Hi")
    tool = {"name": "f", "input_schema": {"type": "object"}}
    body = user | {"model": "tiny", "tools": [tool], "max_tokens": 64}
    assert client.post("/v1/messages", body).status_code == 200
    page = page_of(client)
    found = {
        tuple(sample.labels[name] for name in ("request_type", "mode", "outcome")): sample.value
        for sample in page.families["vllm:tool_call_parser_invocations"].samples
        if sample.value
    }
    assert found == {
        ("chat_completions", "non_streaming", "tool_call"): 3,
        ("chat_completions", "streaming", "tool_call"): 1,
        ("chat_completions", "non_streaming", "no_tool_call"): 1,
        ("other", "non_streaming", "no_tool_call"): 1,
    }


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("end", [Failed(message="lost"), Finished(reason="abort")])
def test_responses_that_were_cut_off_are_not_counted(
    engine, make_app, client_of, tool_text, fakes, is_stream, end, page_of
):
    client = client_of(make_app(engine, text=tool_text, resume_timeout_s=0))
    engine.is_paced = True
    ends = [end, Finished(reason="length")]
    engine.script = lambda request: [fakes.scheduled(2), *"No call yet", ends.pop(0)]
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": is_stream}
    client.post("/v1/chat/completions", body)
    assert page_of(client).num_searches == 0
    client.post("/v1/chat/completions", body)
    assert page_of(client).num_searches == 1


def test_a_later_choice_refused_in_a_stream_is_counted(client, engine, fakes, scrape):
    def script(request):
        if request.request_id != engine.live[0]:
            return
        yield fakes.scheduled(2)
        yield from "some of the first choice"
        engine.emit(Rejected(kind="overloaded", message="full"), engine.live[1])

    engine.script, engine.is_paced = script, True
    body = {"prompt": "Hi", "n": 2, "stream": True}
    response = client.post("/v1/completions", body)
    assert response.status_code == 200
    assert '"code":503' in response.text
    assert scrape().refusals == {"queue_full": 1}
