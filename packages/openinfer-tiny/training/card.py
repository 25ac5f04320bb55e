"""Figures of the model card, made from the evaluation's report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- evaluation.json -->", "<!-- end -->"
_MODES = ("greedy", "sampled")
_COUNTS = ("asked", "valid_calls", "said_beforehand", "rated", "right", "ended")


def update(page: Path, report: dict[str, Any]) -> None:
    """Writes the figures of `report` between the two marks of `page`.

    Raises:
        ValueError: if the page lacks the marks.
    """
    before, _, after = parts(page.read_text(encoding="utf-8"))
    page.write_text(f"{before}\n{table(report)}\n{after}", encoding="utf-8")


def parts(text: str) -> tuple[str, str, str]:
    """Splits the page: up to the first mark, between the marks, and from the second mark on.

    Raises:
        ValueError: if the page does not contain each mark exactly once.
    """
    before, begin, rest = text.partition(BEGIN)
    found, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(
            f"the card needs the marks {BEGIN} and {END}, once: put them around its figures"
        )
    return before + begin, found, end + after


def table(report: dict[str, Any]) -> str:
    """Returns the setting, the table by groups of families with totals, and the remarks."""
    families = report["families"]
    groups: dict[str, list[dict[str, Any]]] = {}
    for family in families:
        groups.setdefault(family["line"], []).append(family)
    needed = [family for family in families if family["needs_call"]]
    others = [family for family in families if not family["needs_call"]]
    sums = {"calls needed": needed, "no call needed": others, "all": families}
    return "\n".join(
        [
            _setting(report),
            "",
            "| held-out | asked | left out | valid calls | right | ended"
            " | valid calls, sampled | right, sampled | ended, sampled |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_line(name, members) for name, members in groups.items()),
            *(_line(f"**{name}**", members) for name, members in sums.items()),
            "",
            _rest(report),
        ]
    )


def counted(families: list[dict[str, Any]], mode: str) -> dict[str, int]:
    """Returns the sums of the counts of `families`."""
    return {name: sum(family[mode][name] for family in families) for name in _COUNTS}


def _line(name: str, families: list[dict[str, Any]]) -> str:
    cells: list[object] = [
        name,
        counted(families, "greedy")["asked"],
        sum(family["worded_as_training"] for family in families),
    ]
    for mode in _MODES:
        counts = counted(families, mode)
        cells += [
            _share(counts["valid_calls"], counts["asked"]),
            _share(counts["right"], counts["rated"]),
            _share(counts["ended"], counts["asked"]),
        ]
    return f"| {' | '.join(map(str, cells))} |"


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %" if total else "-"


def _setting(report: dict[str, Any]) -> str:
    machine, libraries = report["machine"], report["libraries"]
    return (
        f"Measured {report['date'][:10]} in {report['dtype']} on {machine['processor']}"
        f" ({machine['device']}, threads: {machine['threads']}), torch {libraries['torch']},"
        f" transformers {libraries['transformers']}; {report['drawn_per_family']} questions drawn"
        f" for each of {len(report['families'])} families. Left out are questions worded like one"
        f" of {report['training_draws_per_family_compared']:,} training draws of any family."
    )


def _rest(report: dict[str, Any]) -> str:
    loss = report["held_out_loss"]
    nats, num_tokens = loss["nats_per_token"], loss["batches"] * loss["batch_tokens"]
    free, with_tools = report["by_hand"]
    needed = [family for family in report["families"] if family["needs_call"]]
    early, early_sampled = (counted(needed, mode)["said_beforehand"] for mode in _MODES)
    asked = counted(needed, "greedy")["asked"]
    return (
        f"Of {asked} questions that need a call the model wrote the result before a tool had said"
        f" it, in words or in code other than the recipe's, in {early} (sampled:"
        f" {early_sampled}). "
        f"Held-out loss {nats:.3f} nat per token (perplexity {math.exp(nats):.2f}) over at most"
        f" {num_tokens:,} tokens, {loss['dtype']}. Written by hand, apart from the patterns"
        f" (`training/text/probes.toml`): of {free['asked']} questions without tools"
        f" {free['sensible']} got a sensible answer, of {with_tools['asked']} with both tools"
        f" {with_tools['sensible']}. Required, and held to by a test: of the calls needed 95 %"
        " valid, of sums, days between dates and units 90 % right, of all turns 99 % ended, and no"
        " result before its tool's response."
    )
