"""Result files of benchmarks, with the machine, the date and the commit of the measurement.

Every script of the repository's `benchmarks/` writes its result with these functions.
"""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path("benchmarks/results")
"""Default folder of results, from the repository's root."""


def add_record_flag(parser: argparse.ArgumentParser) -> None:
    """Adds `--record [FOLDER]`; its value is None without the flag."""
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=FOLDER,
        metavar="FOLDER",
        help=f"write the result into FOLDER (default: {FOLDER})",
    )


def machine() -> dict[str, Any]:
    """Returns the CPU, the cores this process may use, Python, the system and the load average."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    has_affinity = hasattr(os, "sched_getaffinity")
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """Returns the short hash of the current folder's commit, or "" outside a git clone."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def header(benchmark: str) -> dict[str, Any]:
    """Returns the fields that begin every result: benchmark, date, commit and machine."""
    return {
        "benchmark": benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
    }


def write(folder: Path, report: Mapping[str, Any], *, suffix: str = "") -> Path:
    """Writes a report as `BENCHMARK-DATE{suffix}.json`.

    Args:
        folder: folder for the file; it is created if it does not exist.
        report: the fields of `header` and the figures, as JSON.
        suffix: text that tells two results of one day apart.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report['benchmark']}-{report['date'][:10]}{suffix}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    return path


def run(benchmark: str, measure: Callable[[], Mapping[str, Any]], about: str | None) -> None:
    """Runs a benchmark as a command, and with `--record` writes its result.

    Args:
        benchmark: its name.
        measure: prints the figures and returns them, as JSON.
        about: text for `--help`.
    """
    parser = argparse.ArgumentParser(description=about)
    add_record_flag(parser)
    folder = parser.parse_args().record
    figures = measure()
    if folder:
        write(folder, {**header(benchmark), **figures})
