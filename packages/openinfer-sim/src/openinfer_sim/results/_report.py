"""Report of a run: percentiles, rates, hits and fairness, as a struct, JSON or a table."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from openinfer_sim.results._fairness import Spans, backlogged_spans, jain_index, served_tokens
from openinfer_sim.results._recorder import Recorder, RequestRecord

_MS = 1e3


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Service level objective of one request. A limit that is None is not checked."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    """Limit of the mean time per output token after the first."""
    e2e_ms: float | None = None
    """Limit of the time from sending the request to reading its last token."""

    def is_met(self, record: RequestRecord) -> bool:
        """Returns whether a request was served within every limit."""
        if not record.is_served:
            return False
        times = (
            (record.ttft_s, self.ttft_ms),
            (record.tpot_s, self.tpot_ms),
            (record.latency_s, self.e2e_ms),
        )
        return all(
            time_s is None or limit is None or time_s * _MS <= limit for time_s, limit in times
        )


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class TenantReport(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one tenant."""

    tenant: str
    num_served: int
    output_tokens_per_s: float
    """Output tokens divided by the summed latencies of the tenant's requests: the mean rate of one
    request, its wait included."""
    ttft_ms: Spread | None
    backlogged_tokens_per_s: float | None = None
    """Tokens computed for the tenant per second while all tenants were backlogged: prompt tokens
    that were not cached, and output tokens. None if they never all were.
    """


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of one policy on one trace."""

    policy: str
    trace: str
    model: str
    device: str
    num_replicas: int
    router: str
    seed: int
    options: dict[str, Any]
    """`max_num_seqs`, and the engine options that differ from their defaults."""
    num_requests: int
    num_served: int
    num_rejected: int
    num_failed: int
    duration_s: float
    """Seconds from the first request sent to the last token read."""
    requests_per_s: float
    output_tokens_per_s: float
    hit_rate: float
    """Share of prompt tokens that were found cached, in [0, 1]."""
    num_preemptions: int
    fairness: float | None
    """Jain's index over the tenants' `backlogged_tokens_per_s`, in (0, 1]; 1 if all are equal, or
    if there is one tenant. None if the tenants were never all backlogged."""
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None = None
    """Time from sending a request to reading its last token."""
    backlogged_s: float = 0.0
    """Seconds in which all tenants were backlogged: each had a request without a first token."""
    num_sessions: int = 0
    num_completed_sessions: int = 0
    """Sessions whose turns were all served."""
    session_ms: Spread | None = None
    """Time from the first request of a completed session to its last token, waits included."""
    slo: Slo | None = None
    slo_share: float | None = None
    """Share of all requests that met `slo`, in [0, 1]; None without an objective."""
    tenants: tuple[TenantReport, ...] = ()
    """Tenants by name, if there are several."""

    def to_json(self) -> bytes:
        """Returns indented JSON. Equal runs give equal bytes."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def spread_ms(seconds: Sequence[float] | np.ndarray) -> Spread | None:
    """Returns the distribution of durations, given in seconds. None if there are none."""
    values = np.asarray(seconds, np.float64) * _MS
    if not values.size:
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Spread(
        mean=float(values.mean()),
        p50=float(p50),
        p90=float(p90),
        p99=float(p99),
        max=float(values.max()),
    )


def make_report(
    recorder: Recorder,
    *,
    policy: str,
    trace: str,
    model: str,
    device: str,
    num_replicas: int = 1,
    router: str = "",
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    slo: Slo | None = None,
) -> Report:
    """Summarizes a run. The arguments after `recorder` are copied into the report."""
    return Report(
        policy=policy,
        trace=trace,
        model=model,
        device=device,
        num_replicas=num_replicas,
        router=router,
        seed=seed,
        options=dict(options or {}),
        slo=slo,
        slo_share=_slo_share(recorder.records, slo),
        **_counts_and_rates(recorder.records),
        **_distributions(recorder),
        **_shares(recorder.records),
    )


def _counts_and_rates(records: Sequence[RequestRecord]) -> dict[str, Any]:
    served = [record for record in records if record.is_served]
    duration_s = _duration_s(records)
    return {
        "num_requests": len(records),
        "num_served": len(served),
        "num_rejected": sum(record.outcome == "rejected" for record in records),
        "num_failed": sum(record.outcome == "failed" for record in records),
        "duration_s": duration_s,
        "requests_per_s": _ratio(len(served), duration_s),
        "output_tokens_per_s": _ratio(_sum("num_output_tokens", served), duration_s),
        "hit_rate": _ratio(_sum("num_cached_tokens", served), _sum("num_prompt_tokens", served)),
        "num_preemptions": _sum("num_preemptions", records),
    }


def _distributions(recorder: Recorder) -> dict[str, Any]:
    served = [record for record in recorder.records if record.is_served]
    return {
        "ttft_ms": spread_ms([record.ttft_s for record in served]),
        "tpot_ms": spread_ms([r.tpot_s for r in served if r.tpot_s is not None]),
        "itl_ms": spread_ms(np.frombuffer(recorder.inter_token_s, np.float32)),
        "e2e_ms": spread_ms([record.latency_s for record in served]),
        "num_sessions": recorder.num_sessions,
        "num_completed_sessions": len(recorder.session_s),
        "session_ms": spread_ms(recorder.session_s),
    }


def _shares(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Returns the report's fields about tenants: service and fairness."""
    by_tenant: dict[str, list[RequestRecord]] = {}
    for record in records:
        by_tenant.setdefault(record.tenant, []).append(record)
    if len(by_tenant) < 2:
        return {"fairness": 1.0}
    spans = backlogged_spans(by_tenant)
    tenants = tuple(_tenant(name, by_tenant[name], spans) for name in sorted(by_tenant))
    rates = [t.backlogged_tokens_per_s for t in tenants if t.backlogged_tokens_per_s is not None]
    return {
        "fairness": jain_index(rates) if rates else None,
        "backlogged_s": _seconds(spans),
        "tenants": tenants,
    }


def _tenant(name: str, records: Sequence[RequestRecord], spans: Spans) -> TenantReport:
    served = [record for record in records if record.is_served]
    return TenantReport(
        tenant=name,
        num_served=len(served),
        output_tokens_per_s=_ratio(
            _sum("num_output_tokens", served), sum(record.latency_s for record in served)
        ),
        ttft_ms=spread_ms([record.ttft_s for record in served]),
        backlogged_tokens_per_s=(
            served_tokens(records, spans) / _seconds(spans) if spans else None
        ),
    )


def _slo_share(records: Sequence[RequestRecord], slo: Slo | None) -> float | None:
    if slo is None:
        return None
    return _ratio(sum(slo.is_met(record) for record in records), len(records))


def _seconds(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)


def _duration_s(records: Sequence[RequestRecord]) -> float:
    begin = min((record.arrival for record in records), default=0.0)
    return max((record.ended_at for record in records), default=0.0) - begin


def _sum(name: str, records: Iterable[RequestRecord]) -> int:
    return sum(map(attrgetter(name), records))


def _ratio(amount: int, whole: float) -> float:
    return amount / whole if whole else 0.0


def format_table(reports: Sequence[Report]) -> str:
    """Returns a text table with one column for each policy."""
    rows = [("", [report.policy for report in reports]), *_table_rows(reports)]
    widths = [max(len(row[1][i]) for row in rows) for i in range(len(reports))]
    title_width = max(len(title) for title, _ in rows)
    lines = [_headline(reports[0])]
    for title, cells in rows:
        aligned = "  ".join(c.rjust(w) for c, w in zip(cells, widths, strict=True))
        lines.append(f"{title.ljust(title_width)}  {aligned}")
    return "\n".join(lines)


def _headline(report: Report) -> str:
    where = report.device
    if report.router:
        where = f"{report.num_replicas} {where} by {report.router}"
    options = "".join(f", {name} {value}" for name, value in report.options.items())
    return f"{report.trace} · {report.model} on {where}{options}, seed {report.seed}"


def _table_rows(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    rows: list[tuple[str, list[str]]] = []

    def add(title: str, values: Iterable[str]) -> None:
        rows.append((title, list(values)))

    add("requests served", (f"{r.num_served} of {r.num_requests}" for r in reports))
    if any(r.num_sessions != r.num_requests for r in reports):
        add("sessions done", (f"{r.num_completed_sessions} of {r.num_sessions}" for r in reports))
    add("duration, s", (f"{r.duration_s:.1f}" for r in reports))
    add("output tokens/s", (f"{r.output_tokens_per_s:.0f}" for r in reports))
    for title in ("TTFT", "TPOT", "ITL", "E2E"):
        spreads: list[Spread | None] = [getattr(r, f"{title.lower()}_ms") for r in reports]
        for part in ("p50", "p90", "p99"):
            values = ("-" if s is None else f"{getattr(s, part):.2f}" for s in spreads)
            add(f"{title} {part}, ms", values)
    if any(r.slo_share is not None for r in reports):
        add(
            "within the SLO",
            ("-" if r.slo_share is None else f"{r.slo_share:.1%}" for r in reports),
        )
    add("prefix hit rate", (f"{r.hit_rate:.1%}" for r in reports))
    add("preemptions", (str(r.num_preemptions) for r in reports))
    add("fairness (Jain)", ("-" if r.fairness is None else f"{r.fairness:.3f}" for r in reports))
    return rows
