"""Sums are what a person with a pencil gets."""

import json
import sys
from array import array

import msgspec
import pytest

from openinfer_sim import MissingExtra, Report, format_table, make_report, plot_runs
from openinfer_sim.results._recorder import Recorder, RequestRecord
from openinfer_sim.results._report import jain_index, spread_ms


def _record(**changes):
    fields = {
        "tenant": "a",
        "arrival": 1.0,
        "first_token_at": 1.5,
        "ended_at": 3.5,
        "num_prompt_tokens": 100,
        "num_cached_tokens": 40,
        "num_output_tokens": 5,
        "num_preemptions": 1,
        "outcome": "length",
        "replica": 0,
    }
    return RequestRecord(**(fields | changes))


def _report(*records, gaps=()):
    recorder = Recorder(list(records), array("f", gaps))
    return make_report(recorder, policy="p", trace="t", model="m", device="d", seed=3)


def test_the_sums():
    report = _report(
        _record(),
        _record(tenant="b", arrival=2.0, first_token_at=4.0, ended_at=6.0, num_output_tokens=1),
        _record(outcome="rejected", first_token_at=None, num_cached_tokens=0, num_preemptions=0),
        _record(outcome="failed", first_token_at=None, num_preemptions=2),
        gaps=[0.25, 0.5],
    )
    assert (report.num_requests, report.num_served) == (4, 2)
    assert (report.num_rejected, report.num_failed) == (1, 1)
    assert report.duration_s == 5.0
    assert report.requests_per_s == 0.4
    assert report.output_tokens_per_s == 6 / 5
    assert report.hit_rate == 0.4
    assert report.num_preemptions == 4
    assert report.ttft_ms.p50 == pytest.approx((500 + 2000) / 2)
    assert report.tpot_ms.max == pytest.approx(2000 / 4)
    assert report.itl_ms.mean == pytest.approx(375)
    assert [t.output_tokens_per_s for t in report.tenants] == [5 / 2.5, 1 / 4]
    assert report.fairness == pytest.approx((2 + 0.25) ** 2 / (2 * (4 + 0.0625)))


def test_nothing_served_has_no_distributions():
    report = _report(_record(outcome="rejected", first_token_at=None))
    assert report.ttft_ms is report.tpot_ms is report.itl_ms is None
    assert report.hit_rate == 0.0
    assert "0 of 1" in format_table([report])


def test_percentiles():
    spread = spread_ms([0.001 * i for i in range(101)])
    assert (spread.mean, spread.p50, spread.p90, spread.p99, spread.max) == pytest.approx(
        (50, 50, 90, 99, 100)
    )


def test_jain():
    assert jain_index([3, 3, 3]) == 1.0
    assert jain_index([1, 0, 0, 0]) == 0.25
    assert jain_index([]) == 1.0


def test_json_reads_back():
    report = _report(_record())
    assert msgspec.json.decode(report.to_json(), type=Report) == report
    assert json.loads(report.to_json())["policy"] == "p"


def test_the_table_has_a_column_a_policy():
    first = _report(_record())
    second = msgspec.structs.replace(first, policy="a-policy-of-a-long-name")
    lines = format_table([first, second]).splitlines()
    assert lines[0] == "t · m on d, seed 3"
    assert lines[1].split() == ["p", "a-policy-of-a-long-name"]
    assert len({len(line) for line in lines[1:]}) == 1
    (row,) = (line for line in lines if line.startswith("TTFT p50"))
    assert row.split()[-2:] == ["500.00", "500.00"]


def test_without_matplotlib_the_command_that_brings_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"pip install 'openinfer-sim\[plot\]'"):
        plot_runs({"fcfs": Recorder([_record()])}, tmp_path / "x.png")
