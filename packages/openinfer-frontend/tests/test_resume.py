"""Responses whose engine dies: another engine continues them, once."""

import asyncio
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from openinfer_contract import EngineDead, Failed, Finished, unpack_ids
from openinfer_frontend import FrontendConfig, create_app

DIED = Failed(message="the engine has died: /opt/models/secret is gone", is_retryable=True)


@pytest.fixture
def lives(engine, fakes):
    """Runs a request; gives each engine, one after another, its texts and its end."""

    def script(*parts):
        remaining = list(parts)

        def answer(request):
            *texts, end = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            cached = fakes.scheduled(request.num_prompt_tokens, 2 * len(engine.requests))
            return [cached, *texts, end]

        engine.script = answer

    return script


def test_a_stream_continues_where_it_was(client, engine, lives):
    lives(("He", "l", DIED), ("lo", Finished(reason="length")))
    body = {"prompt": "Hi", "seed": 7, "max_tokens": 9, "min_tokens": 4, "logprobs": 0}
    events = client.stream("/v1/completions", body | {"stream_options": {"include_usage": True}})
    assert "".join(e["choices"][0]["text"] for e in events if e["choices"]) == "Hello"
    first, second = engine.requests
    assert unpack_ids(second.prompt_token_ids) == [*b"HiHel"]
    assert second.num_output_prefix == 3
    assert (second.sampling, second.stop) == (first.sampling, first.stop)
    assert second.request_id == first.request_id
    usage = events[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2, 5)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2, "of the first engine"
    offsets = [e["choices"][0]["logprobs"]["text_offset"] for e in events if e["choices"]]
    assert [offset for chunk in offsets for offset in chunk] == [0, 1, 2, 3, 4]


def _counted(client, *names):
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.labels.get("finished_reason", "length") == "length"
    }
    return [samples[f"vllm:{name}"] for name in names]


def test_a_resumed_request_is_counted_once(client, lives):
    lives(("He", "l", DIED), ("lo", Finished(reason="length")))
    client.stream("/v1/completions", {"prompt": "Hi", "max_tokens": 9})
    assert _counted(client, "prompt_tokens_total", "prompt_tokens_cached_total") == [2, 2]
    assert _counted(client, "generation_tokens_total", "request_success_total") == [5, 1]
    assert _counted(client, "time_to_first_token_seconds_count") == [1]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_whole_responses_continue_too(client, engine, lives, path):
    lives((DIED,), ("Hello", Finished(reason="length")))
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "tiny", "max_tokens": 9, "messages": messages, "input": "Hi"}
    response = client.post(path, body)
    assert response.status_code == 200, response.text
    assert "Hello" in response.text
    assert engine.requests[1].num_output_prefix == 0


def test_every_sample_continues_by_itself(client, engine, lives):
    lives(("a", DIED), ("b", DIED), ("A", Finished(reason="length")))
    body = client.complete("Hi", n=2, seed=1)
    assert [choice["text"] for choice in body["choices"]] == ["aA", "bA"]
    assert [r.sampling.seed for r in engine.requests[2:]] == [
        r.sampling.seed for r in engine.requests[:2]
    ]


def test_a_request_that_kills_two_engines_fails(client, engine, lives):
    lives(("a", DIED), ("b", DIED))
    response = client.post("/v1/completions", {"prompt": "Hi"})
    assert response.status_code == 503
    assert len(engine.requests) == 2
    assert response.json()["error"]["message"] == "the engine has died: (path) is gone"


@pytest.mark.parametrize(
    "fields", [{"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}], ids=["prompt", "echo"]
)
def test_scored_prompts_are_not_resumed(client, engine, lives, fields):
    lives(("a", DIED), ("b", Finished(reason="length")))
    assert client.post("/v1/completions", {"prompt": "Hi"} | fields).status_code == 503
    assert len(engine.requests) == 1


def test_a_failure_that_would_repeat_is_final(client, engine, lives):
    lives(("a", Failed(message="the device is gone")), ("b", Finished(reason="length")))
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 500
    assert len(engine.requests) == 1


class Provider:
    """A provider that has no engine for a while, or permanently."""

    def __init__(self, engine):
        self.state = "ready"
        self._engine = engine

    def handle(self):
        if self.state != "ready":
            raise EngineDead("the engine is restarting")
        return self._engine


@pytest.fixture
def dying(engine, text):
    """An application whose engine dies after its first submission, and the engine's provider."""

    def make(**settings):
        provider, original = Provider(engine), engine.script

        def script(request):
            if len(engine.requests) == 1:
                # When this engine dies, the restart begins.
                provider.state = "restarting"
            return original(request)

        engine.script = script
        config = FrontendConfig(served_model_names=("m",), version="1", **settings)
        return create_app(provider, text, config), provider

    return make


@pytest.mark.parametrize(("state", "status"), [("ready", 200), ("dead", 503)])
def test_a_request_waits_while_the_engine_restarts(dying, lives, state, status):
    lives(("He", DIED), ("llo", Finished(reason="length")))
    app, provider = dying(resume_timeout_s=5)

    async def main():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = asyncio.create_task(client.post("/v1/completions", json={"prompt": "Hi"}))
            await asyncio.sleep(0.1)
            assert not answer.done()
            provider.state = state
            return await answer

    response = asyncio.run(main())
    app.close()
    assert response.status_code == status, response.text


def test_an_abort_between_two_engines_reaches_the_next_one(dying, engine, lives):
    lives(("He", DIED), ("l",))
    app, provider = dying(resume_timeout_s=5)

    async def main():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            body = {"prompt": "Hi", "request_id": "mine"}
            answer = asyncio.create_task(client.post("/v1/completions", json=body))
            await asyncio.sleep(0.1)
            aborted = await client.post("/abort_requests", json={"abort_all": True})
            assert aborted.status_code == 200
            assert engine.aborted == []
            provider.state = "ready"
            while not engine.aborted:
                await asyncio.sleep(0.01)
            assert engine.aborted == [engine.requests[1].request_id]
            answer.cancel()

    asyncio.run(asyncio.wait_for(main(), 10))
    app.close()


@pytest.mark.parametrize(
    ("settings", "fields", "param"),
    [({}, {"deadline_ms": 200}, "deadline_ms"), ({"request_timeout_s": 0.2}, {}, None)],
    ids=["the request's", "the server's"],
)
def test_no_wait_for_an_engine_outlasts_the_deadline(
    dying, lives, client_of, settings, fields, param
):
    lives(("He", DIED))
    app, _ = dying(resume_timeout_s=5, **settings)
    began = time.monotonic()
    response = client_of(app).post("/v1/completions", {"prompt": "Hi"} | fields)
    assert time.monotonic() - began < 3
    assert (response.status_code, response.json()["error"]["param"]) == (408, param)
    assert response.headers["x-should-retry"] == "false"
    app.close()


def test_no_engine_in_time(dying, lives, client_of):
    lives(("He", DIED))
    app, _ = dying(resume_timeout_s=0.05)
    assert client_of(app).post("/v1/completions", {"prompt": "Hi"}).status_code == 503
    app.close()
