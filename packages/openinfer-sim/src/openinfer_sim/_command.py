"""`openinfer sim`: policies side by side on one trace."""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from openinfer_scheduler import load_policy
from openinfer_sim._figures import load_figures
from openinfer_sim._plot import import_figure, plot_runs
from openinfer_sim._report import format_table
from openinfer_sim._routing import ROUTERS
from openinfer_sim._run import Run, simulate
from openinfer_sim._setup import Setup
from openinfer_sim._trace_spec import parse_trace, trace_kinds
from openinfer_sim.errors import SimError


def add(commands: Any) -> None:
    """Adds the command to the application's; entry point group `openinfer.commands`."""
    figures = load_figures()
    models, devices = ", ".join(figures.model), ", ".join(figures.device)
    parser = commands.add_parser(
        "sim",
        help="score scheduling policies on modelled devices",
        description="Runs the real scheduler over a modelled device on a virtual clock.",
        epilog="traces: " + "; ".join(f"{k}:{','.join(o)}" for k, o in trace_kinds().items()),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--policy",
        action="append",
        help="an installed policy or module:Class; repeat to compare (fcfs)",
    )
    parser.add_argument("--trace", default="poisson", help="KIND:option=value,... (poisson)")
    parser.add_argument("--model", default="qwen3-4b", help=f"{models} (qwen3-4b)")
    parser.add_argument("--device", default="h200", help=f"{devices} (h200)")
    parser.add_argument("--replicas", type=int, default=1, help="engines (1)")
    parser.add_argument(
        "--router", default="least-loaded", help=f"one of {', '.join(ROUTERS)} (least-loaded)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (0)")
    parser.add_argument("--no-prefix-cache", action="store_true", help="keep no prefixes")
    for name, (kind, what) in _SETUP.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=what)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw distributions there")
    parser.set_defaults(run=run, takes_extra=False)


_SETUP: Mapping[str, tuple[type, str]] = {
    "max_model_len": (int, "prompt and output tokens of one request at most"),
    "max_num_seqs": (int, "requests running at once (256)"),
    "max_num_batched_tokens": (int, "tokens forwarded in one step (8192)"),
    "block_size": (int, "tokens of a cache block (16)"),
    "kv_cache_bytes": (int, "memory of the KV cache"),
    "admission": (str, "optimistic or lifetime (optimistic)"),
    "eviction_policy": (str, "which cached blocks go first: lru, lfu or priority (lru)"),
    "long_prefill_token_threshold": (int, "tokens of one prefill chunk at most"),
    "max_num_partial_prefills": (int, "prompts partly forwarded at the same time at most"),
    "target_itl_ms": (float, "what 99 %% of the gaps between tokens should keep"),
}
"""Fields of `Setup` that are flags, and their types."""


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
    if namespace.plot:
        import_figure()  # what is missing is said before minutes are spent
    limits = {n: v for n in _SETUP if (v := getattr(namespace, n)) is not None}
    setup = Setup(model=namespace.model, device=namespace.device, **limits)
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
            has_prefix_cache=not namespace.no_prefix_cache,
            seed=namespace.seed,
        )
        took = time.perf_counter() - begin
        print(f"{policy}: {trace.num_requests} requests in {took:.1f} s", file=sys.stderr)
    print(format_table([run.report for run in runs.values()]))
    try:
        _write(runs, namespace, title=trace.name)
    except OSError as error:
        raise SimError(f"{error.filename}: {error.strerror}") from error
    return 0


def _write(runs: Mapping[str, Run], namespace: argparse.Namespace, *, title: str) -> None:
    if namespace.json:
        reports = msgspec.json.encode([run.report for run in runs.values()])
        namespace.json.write_bytes(msgspec.json.format(reports, indent=2))
    if namespace.plot:
        recorders = {policy: run.recorder for policy, run in runs.items()}
        plot_runs(recorders, namespace.plot, title=title)
