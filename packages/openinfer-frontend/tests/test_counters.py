"""Counters in shared memory: histograms against a naive count, and pages that outlive processes."""

import os
import random
import signal
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from openinfer_frontend import CounterLayoutError, CounterPages
from openinfer_frontend.metrics._counters import PAGE_BYTES, CounterTable
from openinfer_frontend.metrics._exposition import render
from openinfer_frontend.metrics._metrics import TOKEN_COUNTS, MetricsSnapshot

BOUNDS = (0.001, 0.0025, 0.01, 1.0, 80.0)


def shown(table, pages, **fields):
    """Returns samples by name and labels, as a scraper reads them."""
    snapshot = MetricsSnapshot(
        totals=pages.totals(table.num_cells),
        families=table.families,
        **{"prefix": "", "model_name": "m", "max_model_len": None, "engine": None} | fields,
    )
    page, _ = render(snapshot, "")
    return {
        (sample.name, sample.labels.get("le"), sample.labels.get("kind")): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_histogram_is_a_naive_count(seed):
    rng = random.Random(seed)
    values = [rng.choice([*BOUNDS, 0.0, 1e4, rng.lognormvariate(-3, 4)]) for _ in range(500)]
    counts = [rng.randint(1, 3) for _ in values]
    pages = CounterPages()
    table = CounterTable(pages.page(0))
    table.counter("before", "Not touched.").add(7)
    histogram = table.histogram("seconds", "Some.", BOUNDS)
    table.counter("behind", "Not touched.").add(9)
    for value, count in zip(values, counts, strict=True):
        histogram.observe(value, count)
    pairs = list(zip(values, counts, strict=True))
    samples = shown(table, pages)
    for bound in BOUNDS:
        expected = sum(count for value, count in pairs if value <= bound)
        assert samples["seconds_bucket", str(bound), None] == expected
    assert samples["seconds_bucket", "+Inf", None] == sum(counts)
    assert samples["seconds_count", None, None] == sum(counts)
    total = sum(value * count for value, count in pairs)
    assert samples["seconds_sum", None, None] == pytest.approx(total)
    assert samples["before_total", None, None] == 7
    assert samples["behind_total", None, None] == 9


def test_buckets_of_token_counts_end_at_the_models_length():
    pages = CounterPages()
    table = CounterTable(pages.page(0))
    histogram = table.histogram("tokens", "Some.", TOKEN_COUNTS)
    for value in (1, 2, 3, 100, 4096, 9_000_000, 90_000_000):
        histogram.observe(value)
    samples = shown(table, pages, max_model_len=4096)
    bounds = [le for name, le, _ in samples if name == "tokens_bucket"]
    ladder = [d * 10**e for e in range(4) for d in (1, 2, 5)]
    assert bounds == [*(str(float(b)) for b in ladder if b <= 4096), "+Inf"]
    assert samples["tokens_bucket", "2000.0", None] == 4
    assert samples["tokens_bucket", "+Inf", None] == samples["tokens_count", None, None] == 7
    assert shown(table, pages) == {}, "the model length is not known yet"


def test_series_that_are_zero_may_be_left_out():
    pages = CounterPages()
    table = CounterTable(pages.page(0))
    series = [("a",), ("b",)]
    kept = table.counters("kept", "Some.", ("kind",), series)
    sparse = table.counters("sparse", "Some.", ("kind",), series, is_sparse=True)
    kept[("a",)].add(2)
    sparse[("b",)].add(3)
    assert shown(table, pages) == {
        ("kept_total", None, "a"): 2,
        ("kept_total", None, "b"): 0,
        ("sparse_total", None, "b"): 3,
    }


def test_a_table_that_does_not_fit_is_a_defect():
    table = CounterTable(CounterPages().page(0))
    with pytest.raises(AssertionError, match="too small"):
        table.counters("many", "Some.", ("kind",), [(str(i),) for i in range(PAGE_BYTES // 8 + 1)])


_CHILD = """
import os, signal, sys
from openinfer_frontend import CounterPages
from openinfer_frontend.metrics._counters import CounterTable
pages = CounterPages(3, fd=int(sys.argv[1]))
table = CounterTable(pages.page(int(sys.argv[2])))
counter = table.counter("things", "Some.")
histogram = table.histogram("seconds", "Some.", (0.5,))
for _ in range(5):
    counter.add()
    histogram.observe(0.25)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_page_outlives_its_process_and_its_successor_continues_it():
    pages = CounterPages(3)
    table = CounterTable(pages.page(0))
    table.counter("things", "Some.").add(100)
    table.histogram("seconds", "Some.", (0.5,)).observe(1.0)
    for number in ("1", "2", "1"):  # the third process takes the first one's page
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(pages.fd), number], pass_fds=(pages.fd,)
        )
        assert child.returncode == -signal.SIGKILL
    pages.close()
    samples = shown(table, pages)
    assert samples["things_total", None, None] == 115
    assert samples["seconds_bucket", "0.5", None] == 15
    assert samples["seconds_bucket", "+Inf", None] == 16
    assert samples["seconds_sum", None, None] == pytest.approx(4.75)


def test_a_page_of_another_layout_is_refused():
    pages = CounterPages(2)
    table, same = CounterTable(pages.page(0)), CounterTable(pages.page(1))
    others = [CounterTable(pages.page(1)) for _ in range(5)]
    for one in (table, same):
        one.counter("things", "Some.")
        one.histogram("seconds", "Some.", (0.5,))
    others[0].counter("things", "Some.")
    others[1].histogram("seconds", "Some.", (0.5,))
    others[1].counter("things", "Some.")
    others[2].counter("things", "Some.")
    others[2].histogram("seconds", "Some.", (0.25,))
    others[3].counters("things", "Some.", ("kind",), [("a",)])
    others[3].histogram("seconds", "Some.", (0.5,))
    assert len({one.layout for one in (table, *others)}) == 6
    pages.write_layout(0, table.layout)
    for other in others:
        with pytest.raises(CounterLayoutError, match="restart the server"):
            pages.write_layout(1, other.layout)
    pages.write_layout(1, same.layout)
    pages.write_layout(1, same.layout)
    assert not any(pages.page(1)[1:].tolist())
    pages.close()


def test_memory_of_another_size_is_refused():
    pages = CounterPages(2)
    fd = os.dup(pages.fd)
    with pytest.raises(CounterLayoutError):
        CounterPages(3, fd=fd)
    pages.close()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_an_inherited_descriptor_is_closed():
    pages = CounterPages(2)
    fd = os.dup(pages.fd)
    other = CounterPages(2, fd=fd)
    with pytest.raises(OSError):
        os.fstat(fd)
    pages.close()
    other.page(1)[0] = 4.0
    assert pages.totals(1) == [4.0]
