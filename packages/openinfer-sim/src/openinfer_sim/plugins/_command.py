"""Command `openinfer sim`: compares policies on one trace."""

import argparse
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from openinfer_contract import OpenInferError
from openinfer_engine import ENGINE_FLAGS, FlagFormatter, add_flags
from openinfer_scheduler import load_policy
from openinfer_sim._run import Run, simulate
from openinfer_sim._setup import Setup
from openinfer_sim.device._figures import load_figures
from openinfer_sim.errors import SimError
from openinfer_sim.replicas._routing import ROUTERS
from openinfer_sim.results._plot import import_figure, plot_runs
from openinfer_sim.results._report import Slo, format_table
from openinfer_sim.traces._trace import Trace
from openinfer_sim.traces._trace_spec import parse_trace, trace_kinds

_ABOUT = "Runs the real scheduler over a modelled device on a virtual clock."


def add(commands: Any) -> None:
    """Adds the command to the application. Entry point of group `openinfer.commands`."""
    parser = commands.add_parser(
        "sim",
        help="score scheduling policies on modelled devices",
        description=_ABOUT,
        epilog=_epilog(),
        allow_abbrev=False,
        formatter_class=FlagFormatter,
    )
    _add_arguments(parser)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command without the application, for `python -m openinfer_sim`."""
    parser = argparse.ArgumentParser(
        prog="python -m openinfer_sim",
        description=_ABOUT,
        epilog=_epilog(),
        allow_abbrev=False,
        formatter_class=FlagFormatter,
    )
    _add_arguments(parser)
    try:
        return run(parser.parse_args(arguments), [])
    except OpenInferError as error:
        print(f"openinfer_sim: {error}", file=sys.stderr)
        return 1


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("--policy", "--scheduling-policy", "--schedule-policy"),
        dest="policy",
        action="append",
        help="an installed policy or module:Class; repeat the flag to compare several (fcfs)",
    )
    parser.add_argument(
        "--trace", default="poisson", help="what clients send, KIND:option=value,... (poisson)"
    )
    _add_replica_arguments(parser)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of arrivals, lengths, content and routing (0)"
    )
    defaults = SimpleNamespace(**{field.name: field.default for field in fields(Setup)})
    add_flags(parser, (flag for flag in ENGINE_FLAGS if flag.dest in _OPTIONS), defaults)
    _add_result_arguments(parser)
    parser.set_defaults(run=run, takes_extra=False)


def _add_replica_arguments(parser: argparse.ArgumentParser) -> None:
    figures = load_figures()
    models, devices = ", ".join(figures.model), ", ".join(figures.device)
    parser.add_argument(
        *("--model", "--sim-model"),
        default="qwen3-4b",
        help=f"model whose sizes are used: {models} (qwen3-4b)",
    )
    parser.add_argument(
        *("--device", "--sim-device"),
        default="h200",
        help=f"device whose rates are used: {devices} (h200)",
    )
    parser.add_argument("--replicas", type=int, default=1, help="number of engines (1)")
    parser.add_argument(
        "--router",
        default="least-loaded",
        help=f"how requests are distributed over replicas: {', '.join(ROUTERS)} (least-loaded)",
    )


def _add_result_arguments(parser: argparse.ArgumentParser) -> None:
    for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "end-to-end latency")):
        parser.add_argument(
            f"--slo-{name}-ms",
            type=_limit,
            metavar="MS",
            help=f"report the share of requests whose {title} is at most MS milliseconds; "
            "several --slo flags must be met together",
        )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the reports to FILE; with -, to standard output, and the table to standard "
        "error",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw distributions to FILE; its suffix is the format: .png, .svg, ...",
    )


def _limit(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of milliseconds above 0, not {text}")
    return value


def _epilog() -> str:
    return f"traces, with their defaults: {_traces()}. See docs/guides/scheduler.md"


def _traces() -> str:
    """Returns every kind of trace with its options and their defaults."""
    shown = {
        kind: (f"{name}={'' if value is None else value}" for name, value in options.items())
        for kind, options in trace_kinds().items()
    }
    return "; ".join(f"{kind}: {', '.join(options)}" for kind, options in shown.items())


_STDOUT = Path("-")
_PREFIX_CACHE = "enable_prefix_caching"
_OPTIONS = frozenset(field.name for field in fields(Setup)) - {"model", "device"} | {_PREFIX_CACHE}
"""Engine options with the same flags as in `openinfer serve`."""


def run(namespace: argparse.Namespace, extra: list[str]) -> int:
    """Simulates every policy and prints a table.

    Raises:
        OpenInferError: An argument is invalid. The message says what to do.
    """
    policies = list(dict.fromkeys(namespace.policy or ["fcfs"]))
    if not 0 <= namespace.seed < 2**63:
        raise SimError("--seed must be in [0, 2**63)")
    for policy in policies:
        load_policy(policy)  # fails on an unknown name before a simulation of minutes
    _check_outputs(namespace)
    runs = _simulate_all(policies, namespace, parse_trace(namespace.trace, seed=namespace.seed))
    table = format_table([run.report for run in runs.values()])
    print(table, file=sys.stderr if namespace.json == _STDOUT else sys.stdout)
    title = next(iter(runs.values())).report.trace
    try:
        _write(runs, namespace, title=title)
    except OSError as error:
        raise SimError(f"{error.filename}: {error.strerror}") from error
    return 0


def _simulate_all(
    policies: Sequence[str], namespace: argparse.Namespace, trace: Trace
) -> dict[str, Run]:
    given = {name: value for name, value in vars(namespace).items() if name in _OPTIONS}
    has_prefix_cache = given.pop(_PREFIX_CACHE, True)
    setup = Setup(model=namespace.model, device=namespace.device, **given)
    runs: dict[str, Run] = {}
    for policy in policies:
        begin = time.perf_counter()
        runs[policy] = simulate(
            trace,
            policy,
            setup=setup,
            num_replicas=namespace.replicas,
            router=namespace.router,
            has_prefix_cache=has_prefix_cache,
            seed=namespace.seed,
            slo=_slo(namespace),
        )
        took = time.perf_counter() - begin
        print(f"{policy}: {trace.num_requests} requests in {took:.1f} s", file=sys.stderr)
        if refusal := runs[policy].recorder.first_refusal:
            num = runs[policy].report.num_rejected
            print(
                f"{policy}: {num} requests were refused, the first because: {refusal}",
                file=sys.stderr,
            )
    return runs


def _slo(namespace: argparse.Namespace) -> Slo | None:
    slo = Slo(
        ttft_ms=namespace.slo_ttft_ms, tpot_ms=namespace.slo_tpot_ms, e2e_ms=namespace.slo_e2e_ms
    )
    return None if slo == Slo() else slo


def _check_outputs(namespace: argparse.Namespace) -> None:
    """Checks that results can be written, before minutes are spent on a simulation.

    Raises:
        SimError: A format is unknown, a folder cannot be written, or matplotlib is missing.
    """
    if namespace.plot:
        if not namespace.plot.suffix:
            raise SimError(
                f"--plot {namespace.plot}: add a suffix that says the format, such as .png"
            )
        formats = import_figure()().canvas.get_supported_filetypes()
        if namespace.plot.suffix[1:].lower() not in formats:
            known = ", ".join(sorted(formats))
            raise SimError(f"--plot {namespace.plot}: unknown format; known are: {known}")
    for file in (namespace.json, namespace.plot):
        if file and file != _STDOUT and not os.access(file.parent, os.W_OK):
            raise SimError(f"{file}: the folder {file.parent} cannot be written to")


def _write(runs: Mapping[str, Run], namespace: argparse.Namespace, *, title: str) -> None:
    if namespace.json:
        encoded = msgspec.json.encode([run.report for run in runs.values()])
        reports = msgspec.json.format(encoded, indent=2)
        if namespace.json == _STDOUT:
            print(reports.decode())
        else:
            namespace.json.write_bytes(reports)
    if namespace.plot:
        recorders = {policy: run.recorder for policy, run in runs.items()}
        plot_runs(recorders, namespace.plot, title=title)
