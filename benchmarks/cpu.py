"""Decode and prefill on this CPU beside transformers and llama.cpp: Qwen3-0.6B, random weights.

    python benchmarks/cpu.py [--llama-python PATH]           (--record [FOLDER] writes a result)
    python benchmarks/cpu.py --systems openinfer-int4 ...    (adds windows to those of this commit)

Every system is a process that holds its model. The systems take turns, window by window, so that
other load affects all of them alike. A window counts only if other processes used less than 12 % of
a core during it. Windows are kept in the work folder until the commit changes: after an interrupted
run, or one on a busy machine, the next run adds the missing windows.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _others import MAX_OTHERS_PERCENT, OthersMeter

from openinfer_engine import physical_cores
from openinfer_testing import results

HERE = Path(__file__).parent
OURS = ("openinfer-bf16", "openinfer-int8", "openinfer-int4")
LLAMA = {"llama.cpp-bf16": "bf16", "llama.cpp-q4_0": "q4_0"}
SYSTEMS = (*OURS, "transformers-bf16", *LLAMA)
BATCHES = (1, 2, 4, 8, 16)
CONTEXTS = (128, 512, 2048, 8192)
STEPS = 12
TARGETS = {
    "decode bf16 over transformers": ("decode", "openinfer-bf16", "transformers-bf16", 1.6),
    "decode bf16 over llama.cpp bf16": ("decode", "openinfer-bf16", "llama.cpp-bf16", 1.35),
    "prefill bf16 over transformers": ("prefill", "openinfer-bf16", "transformers-bf16", 1.1),
    "decode int4 over llama.cpp q4_0": ("decode", "openinfer-int4", "llama.cpp-q4_0", 1.0),
}


class Worker:
    """One system's process."""

    def __init__(self, system: str, folder: Path, llama_python: str | None) -> None:
        if system in LLAMA:
            assert llama_python is not None
            script = str(HERE / "_cpu_llama.py")
            threads = str(physical_cores())
            command = [llama_python, script, LLAMA[system], str(folder), threads]
        else:
            command = [sys.executable, str(HERE / "_cpu_workers.py"), system, str(folder)]
        # The server starts its engine with this; the other systems run with their defaults.
        env = {"GOMP_SPINCOUNT": "10000"} if system in OURS else {}
        self._log = (folder / f"{system}.log").open("w")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **env},
        )
        self._read()

    def ask(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker has ended; see {self._log.name}")
        return json.loads(line)


class Windows:
    """Windows measured at this commit, kept in a file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "windows.json"
        self.state: dict[str, Any] = {"commit": results.commit(), "windows": [], "versions": {}}
        if self._file.exists():
            kept = json.loads(self._file.read_text())
            if kept["commit"] == self.state["commit"]:
                self.state = kept

    def measure(self, worker: Worker, system: str, **command: Any) -> None:
        others = OthersMeter()
        value = worker.ask(**command)
        window = {"system": system, "round": self._num_before(system, command), **command}
        measured = {"value": value, "others_busy_percent": others.percent()}
        self.state["windows"].append(window | measured)
        print(json.dumps(self.state["windows"][-1]), file=sys.stderr)
        self.save()

    def _num_before(self, system: str, command: dict[str, Any]) -> int:
        wanted = {"system": system, **command}
        return sum(wanted.items() <= window.items() for window in self.state["windows"])

    def save(self) -> None:
        self._file.write_text(json.dumps(self.state))

    def quiet(self, **wanted: Any) -> list[dict[str, Any]]:
        return [
            window
            for window in self.state["windows"]
            if window["others_busy_percent"] < MAX_OTHERS_PERCENT
            and all(window.get(key) == value for key, value in wanted.items())
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--llama-python", help="a Python that has llama-cpp-python and gguf")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=15, help="of windows, at most")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "openinfer-cpu")
    results.add_record_flag(parser)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    windows = Windows(arguments.work)
    systems = [s for s in arguments.systems if s not in LLAMA or arguments.llama_python]
    workers: dict[str, Worker] = {}
    try:
        for system in systems:
            workers[system] = Worker(system, arguments.work, arguments.llama_python)
            windows.state["versions"][system] = workers[system].ask(run="versions")
        for worker in workers.values():  # the first window compiles kernels or allocates buffers
            worker.ask(run="prefill")
            worker.ask(run="decode")
        deadline = time.monotonic() + 60 * arguments.minutes
        _compare(workers, windows, arguments.rounds, deadline)
        _steps(workers, windows, deadline)
    finally:
        for worker in workers.values():
            worker.close()
    report = _report(windows)
    print(json.dumps(report, indent=2))
    if arguments.record:
        results.write(arguments.record, report, suffix=f"-{report['commit']}")


def _compare(
    workers: dict[str, Worker], windows: Windows, num_rounds: int, deadline: float
) -> None:
    for _ in range(num_rounds):
        for run in ("decode", "prefill"):
            for system, worker in workers.items():
                if time.monotonic() < deadline:
                    windows.measure(worker, system, run=run)


def _steps(workers: dict[str, Worker], windows: Windows, deadline: float) -> None:
    points = [(batch, CONTEXTS[0]) for batch in BATCHES]
    points += [(1, context) for context in CONTEXTS[1:]]
    for batch, context in points:
        for system in OURS:
            if system in workers and time.monotonic() < deadline:
                windows.measure(
                    workers[system],
                    system,
                    run="steps",
                    batch=batch,
                    context=context,
                    count=STEPS,
                )


def _report(windows: Windows) -> dict[str, Any]:
    compared = {
        run: {system: _summary(windows.quiet(system=system, run=run)) for system in SYSTEMS}
        for run in ("decode", "prefill")
    }
    return {
        **results.header("cpu"),
        "commit": windows.state["commit"],
        "model": "Qwen3-0.6B's shapes, random weights",
        "threads": physical_cores(),
        "versions": windows.state["versions"],
        "max_others_percent": MAX_OTHERS_PERCENT,
        "tokens_per_s": compared,
        "targets": {name: _target(windows, *target) for name, target in TARGETS.items()},
        "steps": {system: _step_tables(windows, system) for system in OURS},
        "num_windows": len(windows.state["windows"]),
        "num_quiet_windows": len(windows.quiet()),
    }


def _summary(windows: list[dict[str, Any]]) -> dict[str, Any] | str:
    if not windows:
        return "no quiet window, or not installed"
    values = [window["value"] for window in windows]
    return {
        "best": round(max(values), 2),
        "median": round(statistics.median(values), 2),
        "windows": len(values),
    }


def _target(
    windows: Windows, run: str, ours: str, theirs: str, wanted: float
) -> dict[str, Any] | str:
    """Ratios of windows that followed each other: both met the same machine."""
    mine, other = (
        {window["round"]: window["value"] for window in windows.quiet(system=system, run=run)}
        for system in (ours, theirs)
    )
    ratios = [mine[number] / other[number] for number in mine.keys() & other.keys()]
    if len(ratios) < 2:
        return "not measured"
    quartiles = [round(ratio, 3) for ratio in statistics.quantiles(ratios, n=4)]
    best = round(max(mine.values()) / max(other.values()), 3)
    is_met = statistics.median(ratios) >= wanted
    return {"quartiles": quartiles, "best": best, "wanted": wanted, "is_met": is_met}


def _step_tables(windows: Windows, system: str) -> dict[str, Any]:
    batches = {}
    for batch in BATCHES:
        times = _step_times(windows, system, batch, CONTEXTS[0])
        if times:
            batches[batch] = {**times, "tokens_per_s": round(1e3 * batch / times["median_ms"], 1)}
    contexts = {
        context: times
        for context in CONTEXTS
        if (times := _step_times(windows, system, 1, context))
    }
    tables: dict[str, Any] = {"by_batch": batches, "by_context": contexts}
    if len(contexts) > 1:
        slope, _ = statistics.linear_regression(
            list(contexts), [times["best_ms"] for times in contexts.values()]
        )
        tables["us_per_token_of_context"] = round(1e3 * slope, 2)
    return tables


def _step_times(windows: Windows, system: str, batch: int, context: int) -> dict[str, float] | None:
    quiet = windows.quiet(system=system, run="steps", batch=batch, context=context)
    # The first step of a window meets cold memory.
    times = [value for window in quiet for value in window["value"][1:]]
    if not times:
        return None
    return {"best_ms": round(min(times), 2), "median_ms": round(statistics.median(times), 2)}


if __name__ == "__main__":
    main()
