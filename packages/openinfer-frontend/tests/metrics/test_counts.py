"""Scraped counts agree exactly with the requests."""

import json
import socket
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest

from openinfer_contract import Failed, Finished, Scheduled, Timings, TokenEvent


def test_requests_and_tokens_are_counted(client, scrape):
    client.complete("Hi")
    client.complete("Hello", stream=False, max_tokens=7)
    client.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
    page = scrape()
    prompts = 2 + 5 + len("<>user\nHi<>\n<>assistant\n") - 3  # each special token is one token
    assert page("prompt_tokens_total") == prompts
    assert page("generation_tokens_total") == 3 * 6
    assert page("prompt_tokens_cached_total") == 9
    assert page("prompt_tokens_by_source_total", source="local_compute") == prompts - 9
    assert page("prompt_tokens_by_source_total", source="local_cache_hit") == 9
    assert page("prompt_tokens_by_source_total", source="external_kv_transfer") == 0
    assert page("prompt_tokens_cached_by_source_total", source="device") == 9
    assert page.ends == {"stop": 3, "length": 0, "abort": 0, "error": 0}
    assert page("request_prompt_tokens_sum") == prompts
    assert page("request_prompt_tokens_bucket", le="2.0") == 1
    assert page("request_prompt_tokens_bucket", le="5.0") == 2
    assert page("request_generation_tokens_sum") == 18
    assert page("request_max_num_generation_tokens_sum") == 18
    assert page("request_prefill_kv_computed_tokens_sum") == prompts - 9
    assert page("request_params_max_tokens_bucket", le="10.0") == 1
    assert page("request_params_n_sum") == 3
    histograms = (
        *("time_to_first_token_seconds", "e2e_request_latency_seconds"),
        *("request_time_per_output_token_seconds", "request_queue_time_seconds"),
        *("request_prefill_time_seconds", "request_decode_time_seconds"),
        *("request_inference_time_seconds", "request_num_preemptions", "request_params_n"),
        *("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens"),
        *("request_max_num_generation_tokens", "request_prefill_kv_computed_tokens"),
    )
    assert page.counts(*histograms) == [3] * len(histograms)
    post = {"method": "POST", "status": "2xx"}
    assert page.http("http_requests_total", handler="/v1/completions", **post) == 2
    assert page.http("http_requests_total", handler="/v1/chat/completions", **post) == 1
    durations = "http_request_duration_seconds_count"
    assert page.http(durations, handler="/v1/completions", method="POST") == 2


def test_latencies_are_measured(client, engine, fakes, scrape, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    timer = SimpleNamespace(monotonic=lambda: clock.now)
    for module in (
        "openinfer_frontend.generation._generation",
        "openinfer_frontend.generation._choice",
        "openinfer_text._request_lowering",
    ):
        monkeypatch.setattr(f"{module}.time", timer)

    def script(request):
        assert request.arrival == 1000.0
        yield TokenEvent(scheduled=Scheduled(num_prompt_tokens=2, queue_s=0.25))
        for wait_s, text in ((0.05, "a"), (0.004, "b"), (0.024, "cde"), (0.0125, "f")):
            clock.now += wait_s
            yield text
        clock.now += 1.0
        timings = Timings(queue_s=0.25, prefill_s=0.04, decode_s=0.0405)
        yield Finished(reason="length", timings=timings, num_preemptions=2)

    engine.script, engine.is_paced = script, True
    client.complete("Hi")
    page = scrape()
    assert page("time_to_first_token_seconds_bucket", le="0.06") == 1
    assert page("time_to_first_token_seconds_bucket", le="0.04") == 0
    assert page("time_to_first_token_seconds_sum") == pytest.approx(0.05)
    assert page("inter_token_latency_seconds_count") == 5, "three came together"
    assert page("inter_token_latency_seconds_sum") == pytest.approx(0.0405)
    buckets = [("0.0025", 0), ("0.005", 1), ("0.0075", 1), ("0.01", 4), ("0.025", 5)]
    for le, count in buckets:
        assert page("inter_token_latency_seconds_bucket", le=le) == count
    assert page("request_time_per_output_token_seconds_sum") == pytest.approx(0.0405 / 5)
    assert page("e2e_request_latency_seconds_sum") == pytest.approx(1.0905)
    assert page("request_queue_time_seconds_sum") == pytest.approx(0.25)
    assert page("request_prefill_time_seconds_sum") == pytest.approx(0.04)
    assert page("request_decode_time_seconds_sum") == pytest.approx(0.0405)
    assert page("request_inference_time_seconds_sum") == pytest.approx(0.0805)
    assert page("request_num_preemptions_bucket", le="1.0") == 0
    assert page("request_num_preemptions_bucket", le="2.0") == 1


def test_each_choice_counts_as_a_request(client, engine, fakes, scrape):
    sizes = iter((1, 4, 2, 3))
    engine.script = lambda request: [
        fakes.scheduled(request.num_prompt_tokens),
        *("x" for _ in range(next(sizes))),
        Finished(reason="length"),
    ]
    client.complete(["Hi", "Hello"], n=2)
    page = scrape()
    assert page.ends["length"] == 4
    assert page("prompt_tokens_total") == 2 * 2 + 2 * 5
    assert page("generation_tokens_total") == 10
    assert page("request_params_n_sum") == 2
    assert page.counts("request_params_n", "request_params_max_tokens") == [1, 1]
    assert page("request_max_num_generation_tokens_sum") == 4 + 3
    assert page.counts("time_to_first_token_seconds", "request_generation_tokens") == [4, 4]


def test_a_choice_ended_by_a_stop_string_is_counted(client, engine, fakes, scrape):
    engine.script = lambda request: [fakes.scheduled(2), "a", "b", "c", "d"]
    assert client.complete("Hi", stop=["bc"])["choices"][0]["text"] == "a"
    page = scrape()
    assert page.ends["stop"] == 1
    assert page("generation_tokens_total") == page("request_generation_tokens_sum") == 3
    assert page.counts("e2e_request_latency_seconds", "request_queue_time_seconds") == [1, 1]
    assert page.counts("request_prefill_time_seconds", "request_num_preemptions") == [0, 0]


def test_scoring_a_prompt_counts_no_output_token(client, engine, fakes, scrape):
    engine.script = lambda request: [fakes.scheduled(2), "x", Finished(reason="length")]
    client.complete("Hi", max_tokens=0, echo=True, logprobs=1)
    page = scrape()
    assert page.ends["length"] == 1
    assert page("prompt_tokens_total") == 2
    assert page("generation_tokens_total") == 0
    assert page.counts("time_to_first_token_seconds", "request_generation_tokens") == [0, 1]


@pytest.mark.parametrize("is_stream", [False, True])
def test_failures_are_errors(client, engine, fakes, scrape, is_stream):
    engine.script = lambda request: [fakes.scheduled(2, 1), "x", Failed(message="no")]
    client.post("/v1/completions", {"prompt": "Hi", "stream": is_stream})
    page = scrape()
    assert page.ends == {"stop": 0, "length": 0, "abort": 0, "error": 1}
    assert page.counts("e2e_request_latency_seconds", "request_prompt_tokens") == [0, 0]


def test_internal_errors_are_counted(client, engine, fakes, scrape, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("a defect")

    engine.script = lambda request: [fakes.scheduled(2), "x"]
    monkeypatch.setattr(
        "openinfer_frontend.protocols.openai._choices_format.ChoicesFormat.add", broken
    )
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 500
    page = scrape()
    assert page.ends == {"stop": 0, "length": 0, "abort": 0, "error": 1}
    status = {"handler": "/v1/completions", "method": "POST", "status": "5xx"}
    assert page.http("http_requests_total", **status) == 1


def test_aborts_before_and_after_the_first_token(client, engine, fakes, scrape):
    scripts = iter(
        [
            [Finished(reason="abort")],
            [fakes.scheduled(2, 1), "xy", Finished(reason="abort")],
        ]
    )
    engine.script = lambda request: next(scripts)
    client.complete("Hi")
    assert scrape()("prompt_tokens_total") == 0, "it was never scheduled"
    client.complete("Hi")
    page = scrape()
    assert page.ends == {"stop": 0, "length": 0, "abort": 2, "error": 0}
    assert page("prompt_tokens_total") == 2
    assert page("generation_tokens_total") == 2
    assert page.counts("e2e_request_latency_seconds", "request_generation_tokens") == [0, 0]
    assert page.counts("time_to_first_token_seconds") == [1]


def test_a_client_that_disconnects_is_counted(start, app, engine, fakes, read_page):
    server = start(app)
    engine.script = lambda request: [fakes.scheduled(2), "xy"]
    body = json.dumps({"prompt": "Hi", "stream": True}).encode()
    address, line = urlsplit(server.url), "POST /v1/completions HTTP/1.1\r\n"
    for _ in range(3):
        with socket.create_connection((address.hostname, address.port)) as sock:
            sock.sendall(f"{line}host: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            sock.recv(1 << 16)
    deadline = time.monotonic() + 10
    while True:
        page = read_page(httpx.get(server.url + "/metrics").text)
        if page.ends["abort"] == 3:
            break
        assert time.monotonic() < deadline, page.ends
        time.sleep(0.01)
    assert page("generation_tokens_total") == 6
    assert page.ends == {"stop": 0, "length": 0, "abort": 3, "error": 0}
