"""`/metrics` of a whole server: several front processes, a dead one, and a dead engine."""

import json
import signal
import urllib.request

import psutil
from prometheus_client.parser import text_string_to_metric_families

from openinfer_testing import wait_until

_MODELLED = ("--engine", "sim", "--sim-model", "qwen3-0_6b")
_SOME = {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "ignore_eos": True}


def _scrape(server):
    """Returns sums over all labels, by metric name."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=30) as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        page = answer.read().decode()
    totals = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                totals[sample.name] = totals.get(sample.name, 0) + sample.value
    return totals


def _complete(server, count):
    for _ in range(count):
        assert server.post("/v1/completions", _SOME)[0] == 200


def _answers_without(process, server):
    """Returns whether another front process serves while this one is suspended."""
    process.suspend()
    try:
        with urllib.request.urlopen(server.url + "/ready", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False
    finally:
        process.resume()


def test_the_front_and_its_engine_count_the_same(start_server):
    server = start_server("--dtype", "float32", "--metrics-prefix", "oi:")
    prompt = "Once upon a time there was a cache. " * 20
    for _ in range(3):
        status, answer = server.post("/v1/completions", _SOME | {"prompt": prompt})
        assert status == 200
    num_prompt = answer["usage"]["prompt_tokens"]
    num_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert num_cached > 16
    server.assert_idle()
    load = server.load()
    # The engine's own report may lag by a fraction of a second.
    wait_until(lambda: _scrape(server)["oi:prefix_cache_queries_total"] == 3 * num_prompt)
    wait_until(lambda: _scrape(server)["oi:num_requests_running"] == 0)
    page = _scrape(server)
    assert page["oi:prompt_tokens_total"] == load["num_prompt_tokens"] == 3 * num_prompt
    assert page["oi:prompt_tokens_cached_total"] == load["num_cached_tokens"] == 2 * num_cached
    assert page["oi:prompt_tokens_by_source_total"] == 3 * num_prompt
    assert page["oi:generation_tokens_total"] == load["num_output_tokens"] == 15
    assert page["oi:request_success_total"] == page["oi:e2e_request_latency_seconds_count"] == 3
    assert page["oi:request_prefill_time_seconds_count"] == 3
    assert page["oi:request_prefill_time_seconds_sum"] > 0
    assert page["oi:prefix_cache_hits_total"] == load["num_cached_tokens"]
    assert page["oi:kv_cache_usage_perc"] == 0
    assert page["http_requests_total"] == 3


def test_what_runs_is_seen_and_a_hang_up_is_an_abort(start_server):
    server = start_server(*_MODELLED)
    body = _SOME | {"stream": True, "max_tokens": 1500}
    request = urllib.request.Request(
        server.url + "/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as stream:
        stream.readline()
        wait_until(lambda: _scrape(server)["vllm:num_requests_running"] == 1)
        assert 0 < _scrape(server)["vllm:kv_cache_usage_perc"] < 1
    wait_until(lambda: _scrape(server)["vllm:request_success_total"] == 1)
    page = _scrape(server)
    assert page["vllm:e2e_request_latency_seconds_count"] == 0, "it was not ended but left"
    assert page["vllm:generation_tokens_total"] > 0
    wait_until(lambda: _scrape(server)["vllm:num_requests_running"] == 0)


def test_front_processes_are_counted_together_and_no_total_goes_back(start_server):
    server = start_server(*_MODELLED, "--api-server-count", "2")
    (other,) = server.children("openinfer.serve._front")
    first = psutil.Process(server.process.pid)
    # While one front process is stopped, the other one accepts.
    other.suspend()
    _complete(server, 3)
    other.resume()
    first.suspend()
    _complete(server, 4)
    assert _scrape(server)["vllm:request_success_total"] == 7, "as the second one sees it"
    first.resume()
    other.suspend()
    assert _scrape(server)["vllm:request_success_total"] == 7, "and the first one"
    other.send_signal(signal.SIGKILL)
    wait_until(lambda: not other.is_running() or other.status() == psutil.STATUS_ZOMBIE)
    page = _scrape(server)
    assert page["vllm:request_success_total"] == page["http_requests_total"] == 7
    wait_until(lambda: [p for p in server.children("openinfer.serve._front") if p.pid != other.pid])
    wait_until(lambda: _answers_without(first, server))
    first.suspend()
    try:
        _complete(server, 2)
        page = _scrape(server)
    finally:
        first.resume()
    assert page["vllm:request_success_total"] == page["vllm:request_params_n_count"] == 9
    assert page["vllm:generation_tokens_total"] == 45


def test_it_answers_while_the_engine_is_dead(start_server):
    server = start_server("--dtype", "float32", "--resume-timeout-s", "0")
    _complete(server, 2)
    engine = server.engine
    engine.send_signal(signal.SIGKILL)
    wait_until(lambda: server.get("/ready")[0] == 503)
    page = _scrape(server)
    assert page["vllm:request_success_total"] == 2
    assert "vllm:num_requests_running" not in page
    assert server.post("/v1/completions", _SOME)[0] == 503
    assert _scrape(server)["vllm:admission_rejections_total"] == 1
    wait_until(lambda: server.get("/ready")[0] == 200)
    _complete(server, 1)
    page = _scrape(server)
    assert page["vllm:request_success_total"] == 3
    assert page["vllm:num_preemptions_total"] == 0
