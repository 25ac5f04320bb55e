"""What benchmarks of GPU kernels share: graph replay, and the file of a result."""

import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

_NUM_WARM = 3


def replay(steps: Sequence[Callable[[], Any]], num_replays: int) -> float:
    """Milliseconds of one step: the median over replays of a graph that holds all of them."""
    for step in steps[:2]:
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [step() for step in steps]
    times = []
    for number in range(num_replays + _NUM_WARM):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if number >= _NUM_WARM:
            times.append(begin.elapsed_time(end) / len(steps))
    del kept
    return statistics.median(times)


def record(folder: Path, benchmark: str, **fields: Any) -> None:
    """Writes `benchmark`-DATE.json. The commit is empty where there is no clone."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    result = {
        "benchmark": benchmark,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit,
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        "torch": torch.__version__,
        **fields,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}-{result['date']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {path}")
