"""Service of tenants while all of them are backlogged, and Jain's index over it.

A tenant is backlogged while at least one of its requests waits for its first token. Only in this
time do tenants compete, so only then does a difference of their service come from the policy.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from openinfer_sim.results._recorder import RequestRecord

Spans = list[tuple[float, float]]
"""Disjoint (begin, end) in ascending order, in seconds."""


def jain_index(values: Iterable[float]) -> float:
    """Returns Jain's fairness index, (sum x)^2 / (n sum x^2); 1 if there is no value above 0."""
    x = np.fromiter(values, np.float64)
    squares = float((x * x).sum()) * x.size
    return float(x.sum()) ** 2 / squares if squares else 1.0


def backlogged_spans(by_tenant: Mapping[str, Sequence[RequestRecord]]) -> Spans:
    """Returns the spans in which every tenant is backlogged."""
    common: Spans | None = None
    for records in by_tenant.values():
        spans = _union(
            (r.arrival, r.ended_at if r.first_token_at is None else r.first_token_at)
            for r in records
        )
        common = spans if common is None else _intersection(common, spans)
    return common or []


def served_tokens(records: Iterable[RequestRecord], spans: Spans) -> float:
    """Returns the tokens computed for these requests within the spans.

    Prompt tokens that were not cached count at the time of the first token. Later output tokens are
    spread evenly over the time from the first token to the end.
    """
    total = 0.0
    for record in records:
        if record.first_token_at is None:
            continue
        first, end = record.first_token_at, record.ended_at
        if any(a <= first <= b for a, b in spans):
            total += record.num_prompt_tokens - record.num_cached_tokens + 1
        if end > first:
            inside = sum(max(0.0, min(b, end) - max(a, first)) for a, b in spans)
            total += (record.num_output_tokens - 1) * inside / (end - first)
    return total


def _union(spans: Iterable[tuple[float, float]]) -> Spans:
    merged: Spans = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _intersection(first: Spans, second: Spans) -> Spans:
    common: Spans = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            common.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common
