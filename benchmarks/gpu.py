"""Every figure of one GPU, one script after another: what docs/performance.md shows.

    python benchmarks/gpu.py FOLDER CLIENT --record DIR [--model-8b FOLDER] [--client-cores 12-15]
                             [--commit HASH] [--parts empty,serving,steps,chain,kernels,hops]

FOLDER and CLIENT are those of gpu_serving.py. DIR gets a file a part, with machine, floors and
commit, and gpu-DATE.json: what follows from two of them. Half a dozen minutes on an H200; the
server and all else keep off the client's cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from gpu_serving import floors

from openinfer_testing import results

HERE = Path(__file__).parent
_SAMPLED = ("temperature", "top_k", "top_p", "frequency_penalty")


class Parts:
    """The scripts, each by itself, and the files they leave."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._args = arguments
        self._folder = Path(arguments.record)
        self._commit = arguments.commit or results.commit()
        self._date = results.header("gpu")["date"][:10]

    @cached_property
    def _floors(self) -> dict[str, Any]:
        return floors()

    def empty(self) -> None:
        """A start with no kernel compiled: nothing of Triton's caches, nothing of ours."""
        with tempfile.TemporaryDirectory() as folder:
            caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "XDG_CACHE_HOME": f"{folder}/cache"}
            file = self._serving("start_empty", ["--rows", "start"], caches)
            file.write_text(file.read_text().replace(folder, "EMPTY"))

    def serving(self) -> None:
        """Measures start, latency and load through the server."""
        model_8b = self._args.model_8b
        self._serving("gpu_serving", ["--model-8b", model_8b] if model_8b else [])

    def steps(self) -> None:
        """Device, idle and host time of steps, in process."""
        lines: list[dict[str, Any]] = []
        cases = (("1,64,256", "32", "32,1024"), ("64", "1024", ""))
        for batches, contexts, prefills in cases:
            flags = ["--batches", batches, "--contexts", contexts, "--prefills", prefills]
            out = self._run("gpu_step.py", [self._args.model, *flags])
            lines += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        self._write(
            "gpu_step", {"rows": [line for line in lines if "step_us" in line or "prefill" in line]}
        )

    def chain(self) -> None:
        """A step's kernels as one graph, and with a prefix that all rows share."""
        batches = [flag for size in (1, 8, 32, 64, 128) for flag in ("--batch", str(size))]
        self._run("decode_step.py", [*batches, "--record", str(self._folder)])
        shared = ["--batch", "64", "--length", "4296", "--shared", "4096"]
        with tempfile.TemporaryDirectory() as folder:
            self._run("decode_step.py", [*shared, "--record", folder])
            (file,) = Path(folder).iterdir()
            self._write("cascade", {"rows": json.loads(file.read_text())["rows"]})

    def kernels(self) -> None:
        """Each kernel beside its floor."""
        self._run("kernel_floors.py", ["--record", str(self._folder)])

    def hops(self) -> None:
        """The way of a first token through front and engine, without a model's time."""
        out = self._run("hop_budget.py", [])
        self._write("hop_budget_gpu", json.loads(out[out.index("{") :]))

    def together(self) -> None:
        """Derives figures from those of the server and of the steps."""
        of_steps = self._read("gpu_step")["rows"]
        rows = self._read("gpu_serving")["rows"]
        (tpot,) = (
            row["tpot_ms"]["mean"]
            for row in rows
            if (row["mode"], row["input_len"]) == ("latency", 32)
        )
        greedy, sampled = (
            next(
                row["step_us"]
                for row in of_steps
                if (row.get("batch"), row.get("context")) == (64, 1024)
                and set(row["sampling"]) == set(names)
                and not row["rows_under_a_grammar"] + row["rows_with_logprobs"]
            )
            for names in ((), _SAMPLED)
        )
        one = next(row["step_us"] for row in of_steps if row.get("batch") == 1)
        found = {
            "client_tpot_over_device_step_us": round(tpot * 1e3 - one, 1),
            "sampled_over_greedy_64_rows_at_1024_percent": round(100 * (sampled / greedy - 1), 2),
        }
        print(json.dumps(found), flush=True)
        self._write("gpu", found)

    def _serving(
        self, name: str, flags: list[str], environment: dict[str, str] | None = None
    ) -> Path:
        args = self._args
        command = [args.model, args.client, *flags, "--commit", self._commit]
        command += ["--client-cores", args.client_cores] if args.client_cores else []
        file = self._folder / f"{name}-{self._date}.json"
        self._run("gpu_serving.py", [*command, "--record", str(file)], environment)
        return file

    def _run(self, script: str, flags: list[str], environment: dict[str, str] | None = None) -> str:
        command = [sys.executable, str(HERE / script), *flags]
        done = subprocess.run(
            command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True
        )
        print(done.stdout, flush=True)
        if done.returncode:
            raise RuntimeError(f"{script} has failed, see above")
        return done.stdout

    def _write(self, name: str, found: dict[str, Any]) -> None:
        known = {"date": self._date, "commit": self._commit, "floors": self._floors}
        results.write(self._folder, {**results.header(name), **known, **found})

    def _read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / f"{name}-{self._date}.json").read_text())
        return found


def main() -> None:
    """Runs the parts; one that fails is told at the end, and the others run all the same."""
    names = ("empty", "serving", "steps", "chain", "kernels", "hops")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("client")
    parser.add_argument("--record", required=True)
    parser.add_argument("--model-8b")
    parser.add_argument("--client-cores")
    parser.add_argument("--commit", help="where there is no clone to ask")
    parser.add_argument("--parts", default=",".join(names))
    args = parser.parse_args()
    wanted = args.parts.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    Path(args.record).mkdir(parents=True, exist_ok=True)
    if args.client_cores:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - _cores(args.client_cores))
    parts, failed = Parts(args), []
    if {"serving", "steps"} <= set(wanted):
        wanted.append("together")
    for name in wanted:
        part: Callable[[], None] = getattr(parts, name)
        try:
            part()
        except Exception as error:  # the device's time is dear: what else can be had is
            print(f"{name}: {error!r}", flush=True)
            failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _cores(text: str) -> set[int]:
    """Those that `taskset -c` means."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


if __name__ == "__main__":
    main()
