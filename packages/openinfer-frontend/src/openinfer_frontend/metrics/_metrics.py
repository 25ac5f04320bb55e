"""The counts of a front process: requests, tokens, latencies, HTTP.

The names are those of vLLM's dashboards. `_exposition` adds the engine's own counts when a page is
made.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from openinfer_contract import EngineInfo, Finished, Load
from openinfer_frontend.errors import Refusal
from openinfer_frontend.generation._choice import Choice
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.http._router import Route
from openinfer_frontend.metrics._counters import CounterPages, CounterTable, Family

Outcome = Literal["stop", "length", "abort", "error"]
"""How a choice ended. error: the engine failed it, or its deadline passed."""

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
HTTP_S = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
TOKEN_COUNTS = (*(float(d * 10**e) for e in range(7) for d in (1, 2, 5)), 1e7)
"""Bounds for models of any length; the page leaves out bounds above the model's length."""
SAMPLE_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_COUNTS = (0.0, *SAMPLE_COUNTS)

_TIERS = ("device", "host", "disk", "peer")
_REQUEST_TYPES = {"/v1/chat/completions": "chat_completions", "/v1/responses": "responses"}
_PROBES = frozenset({"/health", "/ping", "/ready", "/metrics", "/load", "/version"})
"""Routes that monitoring polls. Their requests are not counted, because they would outnumber all
others."""
_METHODS = ("GET", "HEAD", "POST", "OPTIONS", "other")
_STATUSES = ("2xx", "4xx", "5xx")
_LEFT = 499
"""The status that proxies log for a client that disconnected before the status line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """The content of one `/metrics` page."""

    totals: Sequence[float]
    """All cells, summed over all front processes."""
    families: Sequence[Family]
    prefix: str
    """Prefix of all names but those of HTTP."""
    model_name: str
    max_model_len: int | None
    """Upper bound of the buckets for token counts. None: there was no engine yet, so these families
    are left out."""
    engine: tuple[EngineInfo, Load] | None
    """None if there is no engine at the moment."""


class Metrics:
    """Counts of requests, tokens and times; for the event loop.

    Each choice counts as one request, as in the engine. On the path of an event only
    `count_tokens` is called.

    Attributes:
        pages: of all front processes.
        table: of this process.
    """

    def __init__(self, pages: CounterPages, number: int) -> None:
        """Continues the counts of page `number`."""
        self.pages = pages
        self.table = table = CounterTable(pages.page(number))
        self._add_token_families(table)
        self._add_request_families(table)
        self._add_time_families(table)

    def _add_token_families(self, table: CounterTable) -> None:
        self._prompt = table.counter(
            "prompt_tokens", "Prompt tokens of requests that have produced a token."
        )
        self._output = table.counter("generation_tokens", "Tokens generated.")
        self._cached = table.counter("prompt_tokens_cached", "Prompt tokens found in a cache.")
        self._sources = table.counters(
            "prompt_tokens_by_source",
            "Prompt tokens by where their cache entries came from.",
            ("source",),
            [("local_compute",), ("local_cache_hit",), ("external_kv_transfer",)],
        )
        self._tiers = table.counters(
            "prompt_tokens_cached_by_source",
            "Cached prompt tokens by their tier.",
            ("source",),
            [(tier,) for tier in (*_TIERS, "other")],
        )

    def _add_request_families(self, table: CounterTable) -> None:
        self._ends = table.counters(
            "request_success",
            "Requests that have ended, by finish reason.",
            ("finished_reason",),
            [(outcome,) for outcome in get_args(Outcome)],
        )
        self._refusals = table.counters(
            "admission_rejections",
            "HTTP requests that were not accepted, by reason.",
            ("reason",),
            [(refusal,) for refusal in get_args(Refusal)],
        )
        self._parsed = table.counters(
            "tool_call_parser_invocations",
            "Responses that were searched for tool calls.",
            ("request_type", "mode", "outcome"),
            [
                (kind, mode, outcome)
                for kind in (*_REQUEST_TYPES.values(), "other")
                for mode in ("streaming", "non_streaming")
                for outcome in ("tool_call", "no_tool_call")
            ],
        )
        self._prompt_lengths = table.histogram(
            "request_prompt_tokens", "Prompt tokens of a finished request.", TOKEN_COUNTS
        )
        self._output_lengths = table.histogram(
            "request_generation_tokens", "Tokens generated for a finished request.", TOKEN_COUNTS
        )
        self._computed = table.histogram(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens of a finished request that were not cached.",
            TOKEN_COUNTS,
        )
        self._longest = table.histogram(
            "request_max_num_generation_tokens",
            "Tokens of the longest sample of a prompt.",
            TOKEN_COUNTS,
        )
        self._max_tokens = table.histogram(
            "request_params_max_tokens", "Maximum output tokens of a request.", TOKEN_COUNTS
        )
        self._samples = table.histogram(
            "request_params_n", "Samples per prompt of a request.", SAMPLE_COUNTS
        )
        self._preemptions = table.histogram(
            "request_num_preemptions",
            "Preemptions of a request that the engine ended.",
            PREEMPTION_COUNTS,
        )

    def _add_time_families(self, table: CounterTable) -> None:
        self._first_token = table.histogram(
            "time_to_first_token_seconds",
            "From a request's body to its first token.",
            FIRST_TOKEN_S,
        )
        self._gaps = table.histogram(
            "inter_token_latency_seconds",
            "From a token to the next one; tokens of one event share the time.",
            TOKEN_S,
        )
        self._per_token = table.histogram(
            "request_time_per_output_token_seconds",
            "Mean time per token of a finished request after its first token.",
            TOKEN_S,
        )
        self._whole = table.histogram(
            "e2e_request_latency_seconds", "From a request's body to its last token.", REQUEST_S
        )
        self._queued = table.histogram(
            "request_queue_time_seconds",
            "From submission until a request was scheduled.",
            REQUEST_S,
        )
        by_engine = "of a request that the engine ended."
        self._prefilled = table.histogram(
            "request_prefill_time_seconds", f"Prefill {by_engine}", REQUEST_S
        )
        self._decoded = table.histogram(
            "request_decode_time_seconds", f"Decode {by_engine}", REQUEST_S
        )
        self._inferred = table.histogram(
            "request_inference_time_seconds", f"Prefill and decode {by_engine}", REQUEST_S
        )

    def count_submission(self, num_samples: int, max_tokens: int) -> None:
        """Counts an HTTP request that was submitted to the engine."""
        self._samples.observe(num_samples)
        self._max_tokens.observe(max_tokens)

    def count_first_tokens(self, choice: Choice, num_tokens: int, now: float) -> None:
        """Counts a choice's first tokens; 0 tokens if only prompt logprobs were asked for."""
        if num_tokens:
            self._first_token.observe(now - choice.arrival)
            self._output.add(num_tokens)
        num_prompt = choice.request.num_prompt_tokens
        self._prompt.add(num_prompt)
        self._cached.add(choice.num_cached_tokens)
        self._sources[("local_compute",)].add(num_prompt - choice.num_cached_tokens)
        for tier, count in choice.cached:
            source = "local_cache_hit" if tier == "device" else "external_kv_transfer"
            self._sources[(source,)].add(count)
            self._tiers[(tier if tier in _TIERS else "other",)].add(count)

    def count_tokens(self, gap_s: float, num_tokens: int) -> None:
        """Counts further tokens of a choice, which share the time since the previous event."""
        if num_tokens:
            self._gaps.observe(gap_s / num_tokens, num_tokens)
            self._output.add(num_tokens)

    def count_end(self, choice: Choice, outcome: Outcome, end: Finished | None, now: float) -> None:
        """Counts the end of a choice.

        Args:
            choice: its final state.
            outcome: how it ended.
            end: the engine's last event; None if the engine did not end the choice.
            now: monotonic seconds.
        """
        self._ends[(outcome,)].add()
        if end is not None:
            times = end.timings
            self._prefilled.observe(times.prefill_s)
            self._decoded.observe(times.decode_s)
            self._inferred.observe(times.prefill_s + times.decode_s)
            self._preemptions.observe(end.num_preemptions)
        if outcome not in ("stop", "length"):
            return
        num_prompt, num_output = choice.request.num_prompt_tokens, choice.num_output_tokens
        self._prompt_lengths.observe(num_prompt)
        self._output_lengths.observe(num_output)
        self._computed.observe(num_prompt - choice.num_cached_tokens)
        self._queued.observe(choice.queue_s)
        self._whole.observe(now - choice.arrival)
        if num_output > 1:
            self._per_token.observe(choice.output_s / (num_output - 1))

    def count_prompt(self, num_tokens: int) -> None:
        """Counts a prompt whose samples have all ended; the longest has `num_tokens` tokens."""
        self._longest.observe(num_tokens)

    def count_refusal(self, refusal: Refusal) -> None:
        """Counts an HTTP request that was not accepted."""
        self._refusals[(refusal,)].add()

    def count_tool_parse(self, path: str, *, is_stream: bool, has_call: bool) -> None:
        """Counts a response that was searched for tool calls."""
        kind = _REQUEST_TYPES.get(path, "other")
        mode = "streaming" if is_stream else "non_streaming"
        self._parsed[(kind, mode, "tool_call" if has_call else "no_tool_call")].add()


class HttpMetrics:
    """HTTP requests and their durations, under the names of FastAPI's usual instrumentation."""

    def __init__(self, table: CounterTable, routes: Iterable[Route]) -> None:
        """Allocates counters for these routes."""
        pairs = [(method, "none") for method in _METHODS]
        for route in routes:
            if route.path not in _PROBES:
                pairs += [(method, route.path) for method in _methods(route)]
        self._requests = table.counters(
            "http_requests",
            "HTTP requests, without probes and scrapes.",
            ("method", "handler", "status"),
            [(*pair, status) for pair in pairs for status in _STATUSES],
            is_sparse=True,
        )
        self._durations = table.histograms(
            "http_request_duration_seconds",
            "From the head of a request to the end of its response.",
            HTTP_S,
            ("method", "handler"),
            pairs,
            is_sparse=True,
        )

    def count(self, exchange: HttpExchange) -> None:
        """Counts a finished request."""
        path = exchange.route_path
        if path in _PROBES:
            return
        method = exchange.method if exchange.method in _METHODS else "other"
        status = f"{(exchange.status or _LEFT) // 100}xx"
        self._requests[(method, path, status)].add()
        took_s = time.monotonic() - exchange.spans.received_at
        self._durations[(method, path)].observe(took_s)


def _methods(route: Route) -> tuple[str, ...]:
    return ("GET", "HEAD") if route.method == "GET" else (route.method,)
