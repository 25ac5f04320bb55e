"""What a run comes to: percentiles, rates, hits, fairness; as a struct, JSON or a table."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from openinfer_sim.results._recorder import Recorder, RequestRecord

_MS = 1e3


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class TenantReport(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's share."""

    tenant: str
    num_served: int
    output_tokens_per_s: float
    """Output tokens over the time its requests took, waiting included: the rate that one of its
    requests proceeds at."""
    ttft_ms: Spread | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one trace."""

    policy: str
    trace: str
    model: str
    device: str
    num_replicas: int
    router: str
    seed: int
    options: dict[str, Any]
    """The engines' own: how many sequences run at once, and whatever is not the default."""
    num_requests: int
    num_served: int
    num_rejected: int
    num_failed: int
    duration_s: float
    """From the first request sent to the last token read."""
    requests_per_s: float
    output_tokens_per_s: float
    hit_rate: float
    """Prompt tokens found cached, of all prompt tokens scheduled, in [0, 1]."""
    num_preemptions: int
    fairness: float
    """Jain's index over the tenants' `output_tokens_per_s`, in (0, 1]; 1 if all are alike."""
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    tenants: tuple[TenantReport, ...] = ()
    """Where there are several, by name."""

    def to_json(self) -> bytes:
        """Indented JSON. Equal runs give equal bytes."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def spread_ms(seconds: Sequence[float] | np.ndarray) -> Spread | None:
    """The distribution of durations, given in seconds; None if there are none."""
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


def jain_index(values: Iterable[float]) -> float:
    """Jain's fairness index: (sum x)^2 / (n sum x^2); 1 for none or nothing."""
    x = np.fromiter(values, np.float64)
    squares = float((x * x).sum()) * x.size
    return float(x.sum()) ** 2 / squares if squares else 1.0


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
) -> Report:
    """Sums a run up."""
    records = recorder.records
    served = [record for record in records if record.is_served]
    duration_s = _duration_s(records)
    tenants = _tenants(served)
    return Report(
        policy=policy,
        trace=trace,
        model=model,
        device=device,
        num_replicas=num_replicas,
        router=router,
        seed=seed,
        options=dict(options or {}),
        num_requests=len(records),
        num_served=len(served),
        num_rejected=sum(record.outcome == "rejected" for record in records),
        num_failed=sum(record.outcome == "failed" for record in records),
        duration_s=duration_s,
        requests_per_s=_per(len(served), duration_s),
        output_tokens_per_s=_per(_sum("num_output_tokens", served), duration_s),
        hit_rate=_per(_sum("num_cached_tokens", served), _sum("num_prompt_tokens", served)),
        num_preemptions=_sum("num_preemptions", records),
        fairness=jain_index(tenant.output_tokens_per_s for tenant in tenants),
        ttft_ms=spread_ms([record.ttft_s for record in served]),
        tpot_ms=spread_ms([r.tpot_s for r in served if r.tpot_s is not None]),
        itl_ms=spread_ms(np.frombuffer(recorder.inter_token_s, np.float32)),
        tenants=tenants if len(tenants) > 1 else (),
    )


def _duration_s(records: Sequence[RequestRecord]) -> float:
    begin = min((record.arrival for record in records), default=0.0)
    return max((record.ended_at for record in records), default=0.0) - begin


def _sum(name: str, records: Iterable[RequestRecord]) -> int:
    return sum(map(attrgetter(name), records))


def _per(amount: int, whole: float) -> float:
    return amount / whole if whole else 0.0


def _tenants(served: Sequence[RequestRecord]) -> tuple[TenantReport, ...]:
    by_tenant: dict[str, list[RequestRecord]] = {}
    for record in served:
        by_tenant.setdefault(record.tenant, []).append(record)
    reports = []
    for tenant, records in sorted(by_tenant.items()):
        busy_s = sum(record.ended_at - record.arrival for record in records)
        reports.append(
            TenantReport(
                tenant=tenant,
                num_served=len(records),
                output_tokens_per_s=sum(r.num_output_tokens for r in records) / busy_s,
                ttft_ms=spread_ms([record.ttft_s for record in records]),
            )
        )
    return tuple(reports)


def format_table(reports: Sequence[Report]) -> str:
    """Policies side by side, one column each, for people."""
    first = reports[0]
    rows: list[tuple[str, list[str]]] = [("", [report.policy for report in reports])]

    def add(title: str, values: Iterable[str]) -> None:
        rows.append((title, list(values)))

    add("requests served", (f"{r.num_served} of {r.num_requests}" for r in reports))
    add("duration, s", (f"{r.duration_s:.1f}" for r in reports))
    add("output tokens/s", (f"{r.output_tokens_per_s:.0f}" for r in reports))
    for title, name in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms")):
        spreads: list[Spread | None] = [getattr(report, name) for report in reports]
        for part in ("p50", "p90", "p99"):
            values = ("-" if s is None else f"{getattr(s, part):.2f}" for s in spreads)
            add(f"{title} {part}, ms", values)
    add("prefix hit rate", (f"{r.hit_rate:.1%}" for r in reports))
    add("preemptions", (str(r.num_preemptions) for r in reports))
    add("fairness (Jain)", (f"{r.fairness:.3f}" for r in reports))
    widths = [max(len(row[1][i]) for row in rows) for i in range(len(reports))]
    title_width = max(len(title) for title, _ in rows)
    where = first.device
    if first.router:
        where = f"{first.num_replicas} {where} by {first.router}"
    options = "".join(f", {name} {value}" for name, value in first.options.items())
    lines = [f"{first.trace} · {first.model} on {where}{options}, seed {first.seed}"]
    for title, cells in rows:
        aligned = "  ".join(c.rjust(w) for c, w in zip(cells, widths, strict=True))
        lines.append(f"{title.ljust(title_width)}  {aligned}")
    return "\n".join(lines)
