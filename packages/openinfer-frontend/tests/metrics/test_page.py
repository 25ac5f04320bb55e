"""The page of `/metrics`: the engine's state, names, media types, and concurrent readers."""

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)

from openinfer_contract import CacheGroupInfo, CacheGroupLoad, EngineDead, Load
from openinfer_frontend import CounterPages, FixedEngine, FrontendConfig, create_app
from openinfer_frontend.metrics import _exposition


class Holding:
    """An engine whose load is not zero."""

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


def test_the_engines_state(client, engine, scrape, monkeypatch):
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


def test_the_page_exists_without_an_engine(engine, text, client_of, page_of):
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
    page = page_of(client)
    assert page.refusals == {"engine_unavailable": 1}
    assert "vllm:num_requests_running" not in page.families
    assert "vllm:request_prompt_tokens" not in page.families, "its length is not known yet"
    provider.is_dead = False
    client.complete("Hi")
    page = page_of(client)
    assert page("num_requests_running") == 0
    provider.is_dead = True
    gone = page_of(client)
    assert gone.families.keys() <= page.families.keys()
    assert gone("request_prompt_tokens_count") == gone.ends["stop"] == 1
    assert "vllm:num_requests_running" not in gone.families


def test_several_front_processes_share_one_page(engine, text, client_of, page_of):
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
    pages = [page_of(client) for client in clients]
    assert [page.ends["stop"] for page in pages] == [3, 3]
    again = front(1)
    again.complete("Hi")
    assert page_of(clients[0]).ends["stop"] == 4, "it has counted on"


def test_access_and_media_types(engine, make_app, client_of):
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
def test_another_prefix(engine, make_app, client_of, prefix, page_of):
    client = client_of(make_app(engine, metrics_prefix=prefix))
    client.complete("Hi")
    page = page_of(client, prefix)
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


def test_nothing_is_imported_before_the_first_page():
    code = (
        "import sys, openinfer_frontend\n"
        "assert 'prometheus_client' not in sys.modules\n"
        "import openinfer_frontend.metrics._exposition\n"
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
