"""Scale study: how hit rate and TTFT follow the number of replicas and the routing, with agents.

    python -m openinfer_sim.scale_study [--replicas 8 64 512] [--json FILE [--resume]] [--page FILE]

The load per replica is constant: `sessions_per_replica`, started within a few minutes. A cell is
one number of replicas with one router. Cells run in parallel, one per core. The file is written
after each cell. `--resume` keeps the cells that are already in the file.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import msgspec

from openinfer_sim._run import simulate
from openinfer_sim._setup import Setup
from openinfer_sim.errors import SimError
from openinfer_sim.replicas._routing import ROUTERS
from openinfer_sim.results._report import Report
from openinfer_sim.traces._workloads import AgentMix, agent_trace

_BEGIN, _END = "<!-- table -->", "<!-- end of table -->"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one number of replicas with one router."""

    num_sessions: int
    cpu_s: float
    report: Report


def run_study(
    num_replicas: Sequence[int],
    routers: Sequence[str],
    *,
    sessions_per_replica: float = 1.25,
    ramp_s: float = 300.0,
    setup: Setup | None = None,
    mix: AgentMix | None = None,
    seed: int = 0,
    done: Sequence[Cell] = (),
    on_cell: Callable[[Cell, list[Cell]], None] | None = None,
    num_jobs: int = 1,
) -> list[Cell]:
    """Runs every number of replicas with every router.

    Args:
        num_replicas: Numbers of replicas. All routers get the same trace for one number.
        routers: Names of routers.
        sessions_per_replica: Load of a replica.
        ramp_s: Sessions start within this many seconds.
        setup: Setup of each replica.
        mix: Distribution of the agents.
        seed: Seed of traces, output tokens and routers.
        done: Cells of an earlier run, which are not run again.
        on_cell: Called after each cell, with the cell and all cells so far, ordered by size and
            router.
        num_jobs: Number of processes. It does not change the results.
    """
    # Large blocks make the simulation faster: prompts have 142,000 tokens.
    setup = setup or Setup(block_size=128)
    known = {(cell.report.num_replicas, cell.report.router) for cell in done}
    tasks = [
        _Task(size, router, max(1, round(size * sessions_per_replica)), ramp_s, seed)
        for size in num_replicas
        for router in routers
        if (size, router) not in known
    ]
    cells = list(done)
    for cell in _run(tasks, setup, mix or AgentMix(), num_jobs):
        cells.append(cell)
        cells.sort(key=lambda c: (c.report.num_replicas, _rank(c.report.router, routers)))
        if on_cell is not None:
            on_cell(cell, cells)
    return cells


def _rank(router: str, routers: Sequence[str]) -> int:
    return routers.index(router) if router in routers else -1


class _Task(NamedTuple):
    num_replicas: int
    router: str
    num_sessions: int
    ramp_s: float
    seed: int


def _run(tasks: Sequence[_Task], setup: Setup, mix: AgentMix, num_jobs: int) -> Iterator[Cell]:
    """Yields cells as they complete. The largest runs first, so that no core idles at the end."""
    if num_jobs == 1:
        for task in tasks:
            yield _run_cell(task, setup, mix)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_jobs, mp_context=context) as pool:
        futures = [pool.submit(_run_cell, task, setup, mix) for task in reversed(tasks)]
        for future in as_completed(futures):
            yield future.result()


def _run_cell(task: _Task, setup: Setup, mix: AgentMix) -> Cell:
    size, router, num_sessions, ramp_s, seed = task
    trace = agent_trace(sessions=num_sessions, ramp=ramp_s, mix=mix, seed=seed)
    begun = time.process_time()
    run = simulate(trace, setup=setup, num_replicas=size, router=router, seed=seed)
    cpu_s = round(time.process_time() - begun, 1)
    report = msgspec.structs.replace(run.report, tenants=())
    return Cell(num_sessions=num_sessions, cpu_s=cpu_s, report=report)


def format_cells(cells: Sequence[Cell]) -> str:
    """Returns the cells as a Markdown table."""
    lines = [
        "| replicas | sessions | requests | routing | hit rate | TTFT p50, s | TTFT p90, s "
        "| TTFT p99, s | finished after, s | CPU, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        report = cell.report
        assert report.ttft_ms is not None, "the first request of every agent must be served"
        ttfts = (report.ttft_ms.p50, report.ttft_ms.p90, report.ttft_ms.p99)
        columns = (
            str(report.num_replicas),
            str(cell.num_sessions),
            str(report.num_served),
            report.router,
            f"{report.hit_rate:.1%}",
            *(f"{ttft / 1e3:.2f}" for ttft in ttfts),
            f"{report.duration_s:.0f}",
            f"{cell.cpu_s:.0f}",
        )
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def update_page(page: str, cells: Sequence[Cell]) -> str:
    """Returns the page with the table between its two marks replaced.

    Raises:
        SimError: The page has no marks.
    """
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SimError(f"the page must hold the marks {_BEGIN} and {_END}")
    return f"{before}{_BEGIN}\n{format_cells(cells)}\n{_END}{after}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m openinfer_sim.scale_study")
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--routers", nargs="+", default=list(ROUTERS), choices=list(ROUTERS))
    parser.add_argument("--sessions-per-replica", type=float, default=1.25)
    parser.add_argument("--turns", type=int, default=AgentMix().turns, help="median of a session")
    parser.add_argument("--model", default="qwen3-4b")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument(
        "--resume", action="store_true", help="keep the cells that the file already holds"
    )
    parser.add_argument("--page", type=Path, help="replace the table in this Markdown page")
    options = parser.parse_args(arguments)
    if min(options.replicas) < 1:
        parser.error("--replicas must be at least 1")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: {options.json.parent} is not a folder")
    if options.page and not options.page.is_file():
        parser.error(f"--page {options.page}: there is no such file")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the study and prints its table."""
    options = _parse(arguments)

    def note(cell: Cell, cells: list[Cell]) -> None:
        print(format_cells([cell]).splitlines()[-1], file=sys.stderr, flush=True)
        if options.json:
            text = msgspec.json.format(msgspec.json.encode(cells), indent=2)
            options.json.write_bytes(text + b"\n")

    done: list[Cell] = []
    if options.resume and options.json and options.json.exists():
        done = msgspec.json.decode(options.json.read_bytes(), type=list[Cell])
    cells = run_study(
        options.replicas,
        options.routers,
        sessions_per_replica=options.sessions_per_replica,
        setup=Setup(model=options.model, device=options.device, block_size=128),
        mix=AgentMix(turns=options.turns),
        seed=options.seed,
        done=done,
        on_cell=note,
        num_jobs=options.jobs,
    )
    print(format_cells(cells))
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(update_page(page, cells), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
