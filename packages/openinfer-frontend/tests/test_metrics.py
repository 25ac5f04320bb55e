"""`/metrics`: what was done is what a scraper reads, to the last request and token."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from openinfer_contract import (
    CacheGroupInfo,
    CacheGroupLoad,
    EngineDead,
    Failed,
    Finished,
    Load,
    Rejected,
    Scheduled,
    Timings,
    TokenEvent,
)
from openinfer_frontend import CounterPages, FixedEngine, FrontendConfig, _exposition, create_app

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
LABELS = {"model_name": "tiny", "engine": "0"}


class Page:
    """One scrape."""

    def __init__(self, text, prefix="vllm:"):
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }
        self._prefix = prefix

    def __call__(self, name, **labels):
        """A value under our prefix and labels."""
        return self._samples[self._prefix + name, frozenset((LABELS | labels).items())]

    def http(self, name, **labels):
        return self._samples.get((name, frozenset(labels.items())), 0)

    def counts(self, *names):
        """Of histograms, how many values each has."""
        return [self(f"{name}_count") for name in names]


@pytest.fixture
def scrape(client):
    def get():
        response = client.get("/metrics")
        assert response.status_code == 200
        return Page(response.text)

    return get


def ends(page):
    names = ("stop", "length", "abort", "error")
    return {name: page("request_success_total", finished_reason=name) for name in names}


def test_what_was_asked_and_answered(client, scrape):
    client.complete("Hi")
    client.complete("Hello", stream=False, max_tokens=7)
    client.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
    page = scrape()
    prompts = 2 + 5 + len("<>user\nHi<>\n<>assistant\n") - 3  # special tokens are one each
    assert page("prompt_tokens_total") == prompts
    assert page("generation_tokens_total") == 3 * 6
    assert page("prompt_tokens_cached_total") == 9
    assert page("prompt_tokens_by_source_total", source="local_compute") == prompts - 9
    assert page("prompt_tokens_by_source_total", source="local_cache_hit") == 9
    assert page("prompt_tokens_by_source_total", source="external_kv_transfer") == 0
    assert page("prompt_tokens_cached_by_source_total", source="device") == 9
    assert ends(page) == {"stop": 3, "length": 0, "abort": 0, "error": 0}
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


def test_times_by_the_clock(client, engine, fakes, scrape, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    timer = SimpleNamespace(monotonic=lambda: clock.now)
    for module in ("_generation", "_choice", "_lowering"):
        monkeypatch.setattr(f"openinfer_frontend.{module}.time", timer)

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


def test_a_choice_is_a_request_and_a_body_is_not(client, engine, fakes, scrape):
    sizes = iter((1, 4, 2, 3))
    engine.script = lambda request: [
        fakes.scheduled(request.num_prompt_tokens),
        *("x" for _ in range(next(sizes))),
        Finished(reason="length"),
    ]
    client.complete(["Hi", "Hello"], n=2)
    page = scrape()
    assert ends(page)["length"] == 4
    assert page("prompt_tokens_total") == 2 * 2 + 2 * 5
    assert page("generation_tokens_total") == 10
    assert page("request_params_n_sum") == 2
    assert page.counts("request_params_n", "request_params_max_tokens") == [1, 1]
    assert page("request_max_num_generation_tokens_sum") == 4 + 3
    assert page.counts("time_to_first_token_seconds", "request_generation_tokens") == [4, 4]


def test_a_stop_string_ends_it_here(client, engine, fakes, scrape):
    engine.script = lambda request: [fakes.scheduled(2), "a", "b", "c", "d"]
    assert client.complete("Hi", stop=["bc"])["choices"][0]["text"] == "a"
    page = scrape()
    assert ends(page)["stop"] == 1
    assert page("generation_tokens_total") == page("request_generation_tokens_sum") == 3
    assert page.counts("e2e_request_latency_seconds", "request_queue_time_seconds") == [1, 1]
    assert page.counts("request_prefill_time_seconds", "request_num_preemptions") == [0, 0]


def test_scoring_alone_makes_no_token(client, engine, fakes, scrape):
    engine.script = lambda request: [fakes.scheduled(2), "x", Finished(reason="length")]
    client.complete("Hi", max_tokens=0, echo=True, logprobs=1)
    page = scrape()
    assert ends(page)["length"] == 1
    assert page("prompt_tokens_total") == 2
    assert page("generation_tokens_total") == 0
    assert page.counts("time_to_first_token_seconds", "request_generation_tokens") == [0, 1]


@pytest.mark.parametrize("is_stream", [False, True])
def test_failures_are_errors(client, engine, fakes, scrape, is_stream):
    engine.script = lambda request: [fakes.scheduled(2, 1), "x", Failed(message="no")]
    client.post("/v1/completions", {"prompt": "Hi", "stream": is_stream})
    page = scrape()
    assert ends(page) == {"stop": 0, "length": 0, "abort": 0, "error": 1}
    assert page.counts("e2e_request_latency_seconds", "request_prompt_tokens") == [0, 0]


def test_our_own_faults_are_errors(client, engine, fakes, scrape, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("a defect")

    engine.script = lambda request: [fakes.scheduled(2), "x"]
    monkeypatch.setattr("openinfer_frontend._formats.ChoicesFormat.add", broken)
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 500
    page = scrape()
    assert ends(page) == {"stop": 0, "length": 0, "abort": 0, "error": 1}
    status = {"handler": "/v1/completions", "method": "POST", "status": "5xx"}
    assert page.http("http_requests_total", **status) == 1


def test_aborts_before_and_behind_the_first_token(client, engine, fakes, scrape):
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
    assert ends(page) == {"stop": 0, "length": 0, "abort": 2, "error": 0}
    assert page("prompt_tokens_total") == 2
    assert page("generation_tokens_total") == 2
    assert page.counts("e2e_request_latency_seconds", "request_generation_tokens") == [0, 0]
    assert page.counts("time_to_first_token_seconds") == [1]


def test_a_client_that_leaves(start, app, engine, fakes):
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
        page = Page(httpx.get(server.url + "/metrics").text)
        if ends(page)["abort"] == 3:
            break
        assert time.monotonic() < deadline, ends(page)
        time.sleep(0.01)
    assert page("generation_tokens_total") == 6
    assert ends(page) == {"stop": 0, "length": 0, "abort": 3, "error": 0}


def refusals(page):
    names = ("draining", "max_in_flight", "pending_bodies", "queue_full", "engine_unavailable")
    found = {name: page("admission_rejections_total", reason=name) for name in names}
    return {name: count for name, count in found.items() if count}


def test_refusals_by_their_reason(client, app, engine, scrape):
    body = {"prompt": "Hi"}
    rejected = [
        Rejected(kind="overloaded", message="full"),
        Rejected(kind="draining", message="going"),
        Rejected(kind="too_long", message="long"),
    ]
    engine.script = lambda request: [rejected.pop(0)]
    assert [client.post("/v1/completions", body).status_code for _ in range(3)] == [503, 503, 400]
    assert refusals(scrape()) == {"queue_full": 1, "draining": 1}
    engine.dead = "it fell"
    assert client.post("/v1/completions", body).status_code == 503
    assert client.post("/v1/messages", {"prompt": "Hi"}).status_code == 400
    app.start_draining()
    assert client.post("/tokenize", body).status_code == 503
    page = scrape()
    assert refusals(page) == {"queue_full": 1, "draining": 2, "engine_unavailable": 1}
    assert ends(page) == {"stop": 0, "length": 0, "abort": 0, "error": 0}, "none of them ran"
    status = {"handler": "/v1/completions", "method": "POST"}
    assert page.http("http_requests_total", status="5xx", **status) == 3
    assert page.http("http_requests_total", status="4xx", **status) == 1


def test_refusals_for_want_of_room(engine, make_app, client_of):
    client = client_of(make_app(engine, max_pending_body_bytes=10))
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 503
    assert refusals(Page(client.get("/metrics").text)) == {"pending_bodies": 1}
    app = make_app(engine, max_in_flight=1)
    app._backend.num_in_flight = 1
    client = client_of(app)
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 503
    assert refusals(Page(client.get("/metrics").text)) == {"max_in_flight": 1}


def test_probes_are_not_counted_and_what_nobody_serves_is_one_line(client, scrape):
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


def test_searches_for_tool_calls(engine, make_app, client_of, tool_text, say):
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
    page = Page(client.get("/metrics").text)
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


def searches(page):
    samples = page.families["vllm:tool_call_parser_invocations"].samples
    return sum(sample.value for sample in samples)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("end", [Failed(message="lost"), Finished(reason="abort")])
def test_no_search_of_what_was_cut_off(
    engine, make_app, client_of, tool_text, fakes, is_stream, end
):
    client = client_of(make_app(engine, text=tool_text, resume_timeout_s=0))
    engine.is_paced = True
    ends = [end, Finished(reason="length")]
    engine.script = lambda request: [fakes.scheduled(2), *"No call yet", ends.pop(0)]
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": is_stream}
    client.post("/v1/chat/completions", body)
    assert searches(Page(client.get("/metrics").text)) == 0
    client.post("/v1/chat/completions", body)
    assert searches(Page(client.get("/metrics").text)) == 1


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
    assert refusals(scrape()) == {"queue_full": 1}


class Holding:
    """An engine that holds something."""

    load_now = Load(
        num_running=3,
        num_waiting=4,
        num_total_blocks=100,
        num_free_blocks=50,
        num_evictable_blocks=30,
        num_preemptions=5,
        cache_groups=(
            CacheGroupLoad(
                **dict.fromkeys(CacheGroupLoad.__struct_fields__, 0)
                | {"name": "full", "tier": "device"}
                | {"num_queried_tokens": 900, "num_hit_tokens": 300}
            ),
        ),
    )
    group = CacheGroupInfo(
        name="full", kind="full", tokens_per_block=16, num_blocks=100, bytes_per_block=1
    )


def test_what_an_engine_holds(client, engine, scrape, monkeypatch):
    monkeypatch.setattr(engine, "load", lambda: Holding.load_now)
    page = scrape()
    assert page("num_requests_running") == 3
    assert page("num_requests_waiting") == 4
    assert page("kv_cache_usage_perc") == pytest.approx(0.2)
    assert page("num_preemptions_total") == 5
    assert page("prefix_cache_queries_total") == 900
    assert page("prefix_cache_hits_total") == 300
    states = ("awake", "weights_offloaded", "discard_all")
    assert [page("engine_sleep_state", sleep_state=state) for state in states] == [1, 0, 0]


def test_it_answers_without_an_engine(engine, text, client_of):
    class Provider(FixedEngine):
        is_dead = True

        def handle(self):
            if self.is_dead:
                raise EngineDead("gone")
            return super().handle()

    provider = Provider(engine)
    config = FrontendConfig(served_model_names=("tiny",), version="1")
    client = client_of(create_app(provider, text, config))
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 503
    page = Page(client.get("/metrics").text)
    assert refusals(page) == {"engine_unavailable": 1}
    assert "vllm:num_requests_running" not in page.families
    assert "vllm:request_prompt_tokens" not in page.families, "its length is not known yet"
    provider.is_dead = False
    client.complete("Hi")
    page = Page(client.get("/metrics").text)
    assert page("num_requests_running") == 0
    provider.is_dead = True
    gone = Page(client.get("/metrics").text)
    assert gone.families.keys() <= page.families.keys()
    assert gone("request_prompt_tokens_count") == ends(gone)["stop"] == 1
    assert "vllm:num_requests_running" not in gone.families


def test_several_front_processes_are_one_server(engine, text, client_of):
    counters = CounterPages(2)
    config = FrontendConfig(served_model_names=("tiny",), version="1")

    def front(number):
        provider = FixedEngine(engine)
        return client_of(create_app(provider, text, config, counters=counters, number=number))

    counters.close()
    clients = [front(0), front(1)]
    clients[0].complete("Hi")
    clients[1].complete("Hi")
    clients[1].complete("Hi")
    pages = [Page(client.get("/metrics").text) for client in clients]
    assert [ends(page)["stop"] for page in pages] == [3, 3]
    again = front(1)
    again.complete("Hi")
    assert ends(Page(clients[0].get("/metrics").text))["stop"] == 4, "it has counted on"


def test_who_may_read_it_and_in_which_form(engine, make_app, client_of):
    client = client_of(make_app(engine, api_keys=("k",), admin_api_key="a"))
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    head = client.request("HEAD", "/metrics")
    assert head.status_code == 200
    assert head.headers["content-type"] == response.headers["content-type"]
    assert client.request("POST", "/metrics").status_code == 405
    accept = {"accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2"}
    response = client.request("GET", "/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics_families(response.text)}
    assert {"vllm:prompt_tokens", "vllm:num_requests_running"} <= names
    described = client.get("/openapi.json").json()["paths"]
    assert "security" not in described["/metrics"]["get"]
    assert "security" not in described["/ping"]["get"]


@pytest.mark.parametrize("prefix", ["openinfer:", "a_b1_", ""])
def test_another_prefix(engine, make_app, client_of, prefix):
    client = client_of(make_app(engine, metrics_prefix=prefix))
    client.complete("Hi")
    page = Page(client.get("/metrics").text, prefix)
    assert page("num_requests_running") == 0
    assert page("request_success_total", finished_reason="stop") == 1
    assert page.http("http_requests_total", handler="/v1/completions", method="POST", status="2xx")
    assert not any(name.startswith("vllm:") for name in page.families)


@pytest.mark.parametrize("prefix", ["1a", "a-b", "é:", "a b", "a\n"])
def test_a_prefix_that_makes_no_name(engine, make_app, prefix):
    with pytest.raises(ValueError, match="metrics_prefix"):
        make_app(engine, metrics_prefix=prefix)


def test_the_names_that_dashboards_ask_for(client, engine, scrape, monkeypatch):
    monkeypatch.setattr(engine, "load", lambda: Holding.load_now)
    info = SimpleNamespace(limits=engine.info.limits, cache_groups=(Holding.group,))
    monkeypatch.setattr(type(engine), "info", info)
    page = scrape()
    kinds = {name.removeprefix("vllm:"): family.type for name, family in page.families.items()}
    gauges = (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        *("engine_sleep_state", "cache_config_info"),
    )
    counters = (
        *("prompt_tokens", "generation_tokens", "request_success", "prompt_tokens_cached"),
        *("prompt_tokens_by_source", "prompt_tokens_cached_by_source", "admission_rejections"),
        *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "http_requests"),
        "tool_call_parser_invocations",
    )
    histograms = (
        *("time_to_first_token_seconds", "inter_token_latency_seconds"),
        *("request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
        *("request_queue_time_seconds", "request_inference_time_seconds"),
        *("request_prefill_time_seconds", "request_decode_time_seconds"),
        *("request_num_preemptions", "request_prompt_tokens", "request_generation_tokens"),
        *("request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens"),
        *("request_prefill_kv_computed_tokens", "http_request_duration_seconds"),
    )
    expected = dict.fromkeys(gauges, "gauge") | dict.fromkeys(counters, "counter")
    assert kinds == expected | dict.fromkeys(histograms, "histogram")
    labels = {"group": "full", "block_size": "16", "num_gpu_blocks": "100"}
    assert page("cache_config_info", **labels) == 1


def test_nothing_is_imported_before_somebody_asks():
    code = (
        "import sys, openinfer_frontend\n"
        "assert 'prometheus_client' not in sys.modules\n"
        "import openinfer_frontend._exposition\n"
        "assert 'prometheus_client' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_scrapes_at_once_share_a_page_and_delay_no_prompt(
    engine, make_app, client_of, fakes, monkeypatch
):
    gate, rendered, render = threading.Event(), [], _exposition.render

    def gated(snapshot, accept):
        rendered.append(accept)
        gate.wait(30)
        return render(snapshot, accept)

    async def scrape_all():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            try:
                scrapes = [asyncio.ensure_future(client.get("/metrics")) for _ in range(50)]
                await fakes.wait_for(lambda: rendered)
                scrapes.pop().cancel()
                async with asyncio.timeout(10):
                    text = {"prompt": "Hi " * 9000}
                    assert (await client.post("/tokenize", json=text)).status_code == 200
                forms = [{"accept": f"text/plain;q=0.{number}"} for number in range(1, 10)]
                others = [
                    asyncio.ensure_future(client.get("/metrics", headers=form)) for form in forms
                ]
                await fakes.wait_for(lambda: sum(other.done() for other in others) == 6)
            finally:
                gate.set()
            return await asyncio.gather(*scrapes), await asyncio.gather(*others)

    monkeypatch.setattr(_exposition, "render", gated)
    app = make_app(engine, num_text_threads=1)
    pages, others = asyncio.run(scrape_all())
    assert {page.status_code for page in pages} == {200}
    assert len({page.text for page in pages}) == 1
    assert sorted(page.status_code for page in others) == [200] * 3 + [503] * 6
    assert len(rendered) == 4
    assert client_of(app).get("/metrics").status_code == 200
