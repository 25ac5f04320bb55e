"""Scrapes of `/metrics`."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

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
        """Returns a value by its name without the prefix, and by its labels."""
        return self._samples[self._prefix + name, frozenset((LABELS | labels).items())]

    def http(self, name, **labels):
        return self._samples.get((name, frozenset(labels.items())), 0)

    def counts(self, *names):
        """Returns the number of values of each histogram."""
        return [self(f"{name}_count") for name in names]

    @property
    def ends(self):
        """Ended requests by finish reason."""
        names = ("stop", "length", "abort", "error")
        return {name: self("request_success_total", finished_reason=name) for name in names}

    @property
    def refusals(self):
        """Refused HTTP requests by reason."""
        names = ("draining", "max_in_flight", "pending_bodies", "queue_full", "engine_unavailable")
        found = {name: self("admission_rejections_total", reason=name) for name in names}
        return {name: count for name, count in found.items() if count}

    @property
    def num_searches(self):
        """Responses that were searched for tool calls."""
        samples = self.families["vllm:tool_call_parser_invocations"].samples
        return sum(sample.value for sample in samples)


@pytest.fixture
def read_page():
    return Page


@pytest.fixture
def page_of():
    def scrape(client, prefix="vllm:"):
        response = client.get("/metrics")
        assert response.status_code == 200
        return Page(response.text, prefix)

    return scrape


@pytest.fixture
def scrape(client, page_of):
    return lambda: page_of(client)
