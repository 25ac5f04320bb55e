"""Time from process start to the first streamed byte, with the built-in model and warm caches.

    python benchmarks/start.py            (--record [FOLDER] writes a result)

Each start is a new `openinfer serve`; a client asks for a chat answer as soon as the port is open,
and the clock stops at the first byte of the first server-sent event. The first start, which may
compile and fills the page cache, is not counted. Python keeps bytecode, as it does by default, even
if the environment forbids it. Goal: 5 s on two cores, 3 s as a stretch.
"""

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from _others import MAX_OTHERS_PERCENT, OthersMeter, tree

from openinfer_testing import results

GOAL_S, STRETCH_S = 5.0, 3.0
_READY = re.compile(r"ready in [\d.]+ s: .* http://127\.0\.0\.1:(\d+)$")
_BODY = json.dumps(
    {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello!"}],
        "stream": True,
        "max_tokens": 8,
        "temperature": 0,
    }
)


class Memory:
    """Peak resident memory of a process and its descendants together, sampled 50 times a second."""

    def __init__(self, pid: int) -> None:
        self.rss_bytes = 0
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def close(self) -> int:
        self._is_over.set()
        self._thread.join()
        return self.rss_bytes

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            total = 0
            try:
                for process in tree(self._pid):
                    total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self.rss_bytes = max(self.rss_bytes, total)


def start(model: str) -> dict[str, Any]:
    """Measures one start and one response."""
    command = str(Path(sysconfig.get_path("scripts")) / "openinfer")
    others, begun = OthersMeter(), time.perf_counter()
    server = subprocess.Popen(
        [command, "serve", model, "--device", "cpu", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
    )
    memory = Memory(server.pid)
    try:
        port = _port(server)
        ready = time.perf_counter() - begun
        _first_event(port)
        first = time.perf_counter() - begun
        busy = others.percent()
    finally:
        peak = memory.close()
        server.terminate()
        server.communicate()
    return {
        "ready_s": round(ready, 3),
        "first_byte_s": round(first, 3),
        "peak_rss_bytes": peak,
        "others_busy_percent": busy,
    }


def _port(server: subprocess.Popen[str]) -> int:
    assert server.stderr is not None
    lines = []
    for line in server.stderr:
        lines.append(line)
        if match := _READY.search(line.rstrip()):
            return int(match[1])
    raise SystemExit("the server did not start:\n" + "".join(lines))


def _first_event(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", _BODY, headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.read(1) == b"d", "no server-sent event"
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--starts", type=int, default=5, help="counted starts; one more runs first")
    parser.add_argument("--model", default="tiny")
    results.add_record_flag(parser)
    arguments = parser.parse_args()
    start(arguments.model)
    starts = [start(arguments.model) for _ in range(arguments.starts)]
    quiet = [s for s in starts if s["others_busy_percent"] < MAX_OTHERS_PERCENT]
    report = {
        **results.header("start"),
        "model": arguments.model,
        "goal_s": GOAL_S,
        "stretch_s": STRETCH_S,
        "best_quiet": min(quiet, key=lambda s: s["first_byte_s"], default=None),
        "median_quiet_s": (
            round(statistics.median(s["first_byte_s"] for s in quiet), 3) if quiet else None
        ),
        "starts": starts,
    }
    print(json.dumps(report, indent=2))
    if arguments.record:
        results.write(arguments.record, report)


if __name__ == "__main__":
    main()
