"""Results of a package's benchmark, with the machine, the date and the commit beside them."""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path


def record(folder: Path, benchmark: str, figures: Mapping[str, object]) -> Path:
    """Writes `BENCHMARK-DATE.json`.

    Args:
        folder: where results are kept.
        benchmark: its name.
        figures: what it measured, as JSON.

    Returns:
        The file.

    Raises:
        subprocess.CalledProcessError: the current folder is in no clone of a repository.
    """
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    now = datetime.now(UTC)
    entry = {
        "benchmark": benchmark,
        "date": now.isoformat(timespec="seconds"),
        "commit": commit,
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
            "load": round(os.getloadavg()[0], 2),
        },
        **figures,
    }
    path = folder / f"{benchmark}-{now:%Y-%m-%d}.json"
    path.write_text(json.dumps(entry, indent=2) + "\n")
    return path


def run(benchmark: str, measure: Callable[[], Mapping[str, object]], about: str | None) -> None:
    """The command of a benchmark: measures, and with `--record FOLDER` writes the result."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    namespace = parser.parse_args()
    figures = measure()
    if namespace.record:
        record(namespace.record, benchmark, figures)
