"""Reports of hand-made records."""

import json
import sys
from array import array

import msgspec
import pytest

from openinfer_sim import (
    MissingExtra,
    Report,
    RequestMix,
    Segment,
    Session,
    Setup,
    Slo,
    Trace,
    Turn,
    format_table,
    make_report,
    plot_runs,
    poisson_trace,
    simulate,
)
from openinfer_sim.results._fairness import jain_index
from openinfer_sim.results._recorder import Recorder, RequestRecord
from openinfer_sim.results._report import spread_ms


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
    assert report.e2e_ms.max == pytest.approx(4000)


def test_fairness_is_that_of_service_while_all_tenants_wait():
    """b waits from 2 to 4 s. a waits from 0 to 4 s and decodes 9 tokens from 1 to 10 s."""
    report = _report(
        _record(arrival=0.0, first_token_at=1.0, ended_at=10.0, num_output_tokens=10),
        _record(arrival=0.0, first_token_at=4.0, ended_at=4.0, num_output_tokens=1),
        _record(tenant="b", arrival=2.0, first_token_at=4.0, ended_at=9.0, num_output_tokens=50),
    )
    assert report.backlogged_s == 2.0
    # Service from 2 to 4 s. a: 2 decoded tokens, and at 4 s 60 prompt tokens that were not cached
    # and a first token. b: at 4 s the same.
    rates = [tenant.backlogged_tokens_per_s for tenant in report.tenants]
    assert rates == pytest.approx([(2 + 61) / 2, 61 / 2])
    assert report.fairness == pytest.approx(jain_index(rates))


def test_tenants_that_never_wait_together_have_no_fairness():
    report = _report(
        _record(arrival=0.0, first_token_at=1.0),
        _record(tenant="b", arrival=1.0, first_token_at=2.0),
    )
    assert (report.fairness, report.backlogged_s) == (None, 0.0)
    assert report.tenants[0].backlogged_tokens_per_s is None
    assert "fairness (Jain)" in format_table([report])
    assert _report(_record()).fairness == 1.0


def test_fair_is_fairer_than_fcfs_in_overload():
    mix = RequestMix(input=512, output=64, tenants=3, skew=1.0)
    trace = poisson_trace(rate=60.0, duration=8.0, mix=mix, seed=0)
    setup = Setup(max_num_seqs=8)
    fcfs, fair = (simulate(trace, policy, setup=setup).report for policy in ("fcfs", "fair"))
    assert min(fcfs.backlogged_s, fair.backlogged_s) > 5.0
    assert fcfs.fairness < 0.95 < 0.99 < fair.fairness


def test_the_share_within_an_objective_counts_refused_requests():
    records = (
        _record(),  # TTFT 500 ms, TPOT 500 ms, end to end 2,500 ms
        _record(first_token_at=3.0),
        _record(outcome="rejected", first_token_at=None),
        _record(num_output_tokens=1, ended_at=1.5),
    )

    def share(**limits):
        recorder = Recorder(list(records))
        names = {"policy": "p", "trace": "t", "model": "m", "device": "d"}
        report = make_report(recorder, **names, slo=Slo(**limits))
        assert f"{report.slo_share:.1%}" in format_table([report])
        return report.slo_share

    assert share(ttft_ms=500) == 0.5
    assert share(tpot_ms=499) == 0.5
    assert share(ttft_ms=500, tpot_ms=499) == 0.25
    assert share(e2e_ms=2500) == 0.75
    assert _report(*records).slo_share is None


def test_completed_sessions_are_counted():
    turns = (Turn(0.0, (Segment(1, 100),), 4), Turn(1.0, (Segment(2, 50),), 4))
    too_long = (turns[0], Turn(1.0, (Segment(3, 5000),), 4))
    trace = Trace(
        name="t",
        sessions=(
            Session(session_id="whole", start_s=0.0, turns=turns),
            Session(session_id="refused", start_s=0.0, turns=too_long),
        ),
    )
    run = simulate(trace, setup=Setup(max_model_len=1000))
    report = run.report
    assert (report.num_sessions, report.num_completed_sessions, report.num_rejected) == (2, 1, 1)
    first, last = run.recorder.records[0], run.recorder.records[-1]
    assert report.session_ms.max == pytest.approx((last.ended_at - first.arrival) * 1e3)
    assert report.session_ms.max > 1000
    assert "1 of 2" in format_table([report])


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
