"""`openinfer sim`: policies side by side on one trace."""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from openinfer_engine import ENGINE_FLAGS, FlagFormatter, add_flags
from openinfer_scheduler import load_policy
from openinfer_sim._run import Run, simulate
from openinfer_sim._setup import Setup
from openinfer_sim.device._figures import load_figures
from openinfer_sim.errors import SimError
from openinfer_sim.replicas._routing import ROUTERS
from openinfer_sim.results._plot import import_figure, plot_runs
from openinfer_sim.results._report import format_table
from openinfer_sim.traces._trace_spec import parse_trace, trace_kinds


def add(commands: Any) -> None:
    """Adds the command to the application's; entry point group `openinfer.commands`."""
    figures = load_figures()
    models, devices = ", ".join(figures.model), ", ".join(figures.device)
    parser = commands.add_parser(
        "sim",
        help="score scheduling policies on modelled devices",
        description="Runs the real scheduler over a modelled device on a virtual clock.",
        epilog=f"traces, with their defaults: {_traces()}. See docs/guides/scheduler.md",
        allow_abbrev=False,
        formatter_class=FlagFormatter,
    )
    parser.add_argument(
        *("--policy", "--scheduling-policy", "--schedule-policy"),
        dest="policy",
        action="append",
        help="an installed policy or module:Class; repeat to compare (fcfs)",
    )
    parser.add_argument("--trace", default="poisson", help="KIND:option=value,... (poisson)")
    parser.add_argument("--model", "--sim-model", default="qwen3-4b", help=f"{models} (qwen3-4b)")
    parser.add_argument("--device", "--sim-device", default="h200", help=f"{devices} (h200)")
    parser.add_argument("--replicas", type=int, default=1, help="engines (1)")
    parser.add_argument(
        "--router", default="least-loaded", help=f"one of {', '.join(ROUTERS)} (least-loaded)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (0)")
    defaults = SimpleNamespace(**{field.name: field.default for field in fields(Setup)})
    add_flags(parser, (flag for flag in ENGINE_FLAGS if flag.dest in _OPTIONS), defaults)
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the reports there; - for standard output, and the table goes to standard error",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw distributions there; .png, .svg, ..."
    )
    parser.set_defaults(run=run, takes_extra=False)


def _traces() -> str:
    """Every kind with its options and their defaults."""
    shown = {
        kind: (f"{name}={'' if value is None else value}" for name, value in options.items())
        for kind, options in trace_kinds().items()
    }
    return "; ".join(f"{kind}: {', '.join(options)}" for kind, options in shown.items())


_STDOUT = Path("-")
_PREFIX_CACHE = "enable_prefix_caching"
_OPTIONS = frozenset(field.name for field in fields(Setup)) - {"model", "device"} | {_PREFIX_CACHE}
"""Options of every engine that are flags here as they are of the server."""


def run(namespace: argparse.Namespace, extra: list[str]) -> int:
    """Runs it; prints a table.

    Raises:
        OpenInferError: a sentence that says what to do.
    """
    policies = list(dict.fromkeys(namespace.policy or ["fcfs"]))
    if not 0 <= namespace.seed < 2**63:
        raise SimError("--seed must be in [0, 2**63)")
    for policy in policies:
        load_policy(policy)  # an unknown name is refused before minutes are spent
    _check_outputs(namespace)
    given = {name: value for name, value in vars(namespace).items() if name in _OPTIONS}
    has_prefix_cache = given.pop(_PREFIX_CACHE, True)
    setup = Setup(model=namespace.model, device=namespace.device, **given)
    trace = parse_trace(namespace.trace, seed=namespace.seed)
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
        )
        took = time.perf_counter() - begin
        print(f"{policy}: {trace.num_requests} requests in {took:.1f} s", file=sys.stderr)
        if refusal := runs[policy].recorder.first_refusal:
            num = runs[policy].report.num_rejected
            print(f"{policy}: {num} requests refused, the first: {refusal}", file=sys.stderr)
    table = format_table([run.report for run in runs.values()])
    print(table, file=sys.stderr if namespace.json == _STDOUT else sys.stdout)
    try:
        _write(runs, namespace, title=trace.name)
    except OSError as error:
        raise SimError(f"{error.filename}: {error.strerror}") from error
    return 0


def _check_outputs(namespace: argparse.Namespace) -> None:
    """What is missing, or cannot be written, is said before minutes are spent."""
    if namespace.plot:
        if not namespace.plot.suffix:
            raise SimError(f"--plot {namespace.plot}: its suffix says the format, such as .png")
        formats = import_figure()().canvas.get_supported_filetypes()
        if namespace.plot.suffix[1:].lower() not in formats:
            known = ", ".join(sorted(formats))
            raise SimError(f"--plot {namespace.plot}: the format is none of {known}")
    for file in (namespace.json, namespace.plot):
        if file and file != _STDOUT and not os.access(file.parent, os.W_OK):
            raise SimError(f"{file}: {file.parent} is no folder that can be written to")


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
