"""The `/metrics` page in Prometheus's formats.

Importing `prometheus_client` takes 30 ms: this module is imported in a thread, for the first page.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from openinfer_contract import EngineInfo, Load
from openinfer_frontend.metrics._counters import Family
from openinfer_frontend.metrics._metrics import TOKEN_COUNTS, MetricsSnapshot

_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


def render(snapshot: MetricsSnapshot, accept: str) -> tuple[bytes, str]:
    """Returns the page and its media type.

    Args:
        snapshot: the content.
        accept: the scraper's header, which may ask for OpenMetrics.
    """
    registry = CollectorRegistry()
    registry.register(_Collector(snapshot))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


class _Collector:
    """The metric families of one snapshot, made when they are written."""

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot
        self._labels = {"model_name": snapshot.model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        for family in self._snapshot.families:
            yield from self._counted(family)
        if self._snapshot.engine is not None:
            yield from self._engine(*self._snapshot.engine)

    def _counted(self, family: Family) -> Iterator[Metric]:
        bounds = family.bounds
        if bounds is TOKEN_COUNTS:
            if self._snapshot.max_model_len is None:
                return
            bounds = bounds[: bisect_right(bounds, self._snapshot.max_model_len)]
        is_http = family.name.startswith("http_")
        name = family.name if is_http else self._snapshot.prefix + family.name
        common = {} if is_http else self._labels
        names = [*common, *family.labels]
        metric: CounterMetricFamily | HistogramMetricFamily
        metric = (
            HistogramMetricFamily(name, family.help, labels=names)
            if bounds
            else CounterMetricFamily(name, family.help, labels=names)
        )
        for number, series in enumerate(family.series):
            begin = family.begin + number * family.width
            cells = self._snapshot.totals[begin : begin + family.width]
            if family.is_sparse and not any(cells):
                continue
            values = [*common.values(), *series]
            if isinstance(metric, CounterMetricFamily):
                metric.add_metric(values, cells[0])
            else:
                metric.add_metric(values, _buckets(bounds, cells), sum_value=cells[-1])
        yield metric

    def _engine(self, info: EngineInfo, load: Load) -> Iterator[Metric]:
        held = load.num_total_blocks - load.num_free_blocks - load.num_evictable_blocks
        usage = held / load.num_total_blocks if load.num_total_blocks else 0.0
        yield self._gauge("num_requests_running", "Requests in the batch.", load.num_running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", load.num_waiting)
        yield self._gauge(
            "kv_cache_usage_perc", "Share of the KV cache blocks that requests hold, 0 to 1.", usage
        )
        device = next((group for group in load.cache_groups if group.tier == "device"), None)
        if device is not None:
            yield self._counter(
                "prefix_cache_queries",
                "Tokens that were looked up in the prefix cache.",
                device.num_queried_tokens,
            )
            yield self._counter(
                "prefix_cache_hits",
                "Tokens that were found in the prefix cache.",
                device.num_hit_tokens,
            )
        yield self._counter(
            "num_preemptions",
            "Preemptions: requests put back into the queue.",
            load.num_preemptions,
        )
        yield self._labelled(
            "engine_sleep_state",
            "1 for the present state of the engine.",
            [({"sleep_state": state}, float(state == "awake")) for state in _SLEEP_STATES],
        )
        groups = [
            {
                "group": group.name,
                "block_size": str(group.tokens_per_block),
                "num_gpu_blocks": str(group.num_blocks),
            }
            for group in info.cache_groups
        ]
        yield self._labelled(
            "cache_config_info", "Groups of the KV cache.", [(group, 1.0) for group in groups]
        )

    def _counter(self, name: str, text: str, value: float) -> Metric:
        metric = CounterMetricFamily(self._snapshot.prefix + name, text, labels=[*self._labels])
        metric.add_metric([*self._labels.values()], value)
        return metric

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return self._labelled(name, text, [({}, value)])

    def _labelled(
        self, name: str, text: str, series: Iterable[tuple[Mapping[str, str], float]]
    ) -> Metric:
        metric = Metric(self._snapshot.prefix + name, text, "gauge")
        for labels, value in series:
            metric.add_sample(metric.name, self._labels | dict(labels), value)
        return metric


def _buckets(bounds: Sequence[float], cells: Sequence[float]) -> list[tuple[str, float]]:
    """Returns cumulative buckets; cells after the last bound count as +Inf."""
    total, buckets = 0.0, []
    for bound, count in zip(bounds, cells, strict=False):
        total += count
        buckets.append((str(bound), total))
    beyond = sum(cells[len(bounds) : -1])
    return [*buckets, ("+Inf", total + beyond)]
