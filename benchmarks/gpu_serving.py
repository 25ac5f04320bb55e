"""What clients of a server on one GPU see: start, latency, load, prefix hits and memory.

    python benchmarks/gpu_serving.py FOLDER CLIENT [--rows start,latency,closed,poisson,warm]
                                     [--client-cores 12-15] [--record FILE] [-- SERVER FLAGS]

FOLDER is a checkpoint, CLIENT a load client for OpenAI servers that prints one JSON object a line
and knows the modes wait, latency, closed, poisson and warm. The server runs as users start it; the
client gets cores of its own. FILE holds every row with machine, commit, floors and server log.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
PORT = 8123
ROWS: dict[str, list[list[str]]] = {
    "start": [],
    "latency": [
        ["latency", "--input-len", "32", "--output-len", "128"],
        ["latency", "--input-len", "1024", "--output-len", "8"],
    ],
    "closed": [["closed", "--concurrency", "8,32,128"]],
    "poisson": [["poisson", "--rate", "8", "--num-requests", "100"]],
    "warm": [["warm", "--lengths", "1024,16384", "--prompts", "3", "--repeats", "4"]],
}


class Server:
    """One `openinfer serve`, from its start to its end."""

    def __init__(self, folder: str, flags: list[str], client: "Client") -> None:
        self._log = Path(tempfile.mkstemp()[1])
        command = ["openinfer", "serve", folder, "--served-model-name", "bench"]
        self._begun = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen([*command, "--port", str(PORT), *flags], stderr=log)
        self._client = client

    def first_token_s(self) -> float:
        """Seconds from spawn to the first token."""
        self._client.run(["wait", "--timeout", "300"])
        return round(time.perf_counter() - self._begun, 2)

    def memory_mb(self) -> dict[str, float]:
        """Of all its processes, resident and proportional."""
        root = psutil.Process(self._process.pid)
        infos = [p.memory_full_info() for p in (root, *root.children(recursive=True))]
        return {
            "rss_mb": round(sum(info.rss for info in infos) / 1e6),
            "pss_mb": round(sum(info.pss for info in infos) / 1e6),
            "rss_each_mb": [round(info.rss / 1e6) for info in infos],
        }

    def log(self) -> list[str]:
        """What it has written so far."""
        return self._log.read_text().splitlines()

    def close(self) -> None:
        """Ends it and waits."""
        self._process.terminate()
        self._process.wait(60)
        self._log.unlink()


class Client:
    """The load client, on cores of its own."""

    def __init__(self, path: str, cores: str | None) -> None:
        self._command = [*(["taskset", "-c", cores] if cores else []), sys.executable, path]

    def run(self, arguments: list[str]) -> list[dict[str, Any]]:
        """The rows it prints."""
        url = f"http://127.0.0.1:{PORT}"
        command = [*self._command, *arguments, "--url", url]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("client")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--client-cores")
    parser.add_argument("--floors", help="a JSON file of what the machine does at best")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--record")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    client = Client(args.client, args.client_cores)
    result: dict[str, Any] = {"commit": args.commit, "model": Path(args.model).name, "rows": []}
    if args.floors:
        result["floors"] = json.loads(Path(args.floors).read_text())
    server = Server(args.model, args.flags, client)
    try:
        result["start_to_first_token_s"] = server.first_token_s()
        result["memory_idle"] = server.memory_mb()
        print(json.dumps({k: v for k, v in result.items() if k != "floors"}), flush=True)
        for name in args.rows.split(","):
            for arguments in ROWS[name]:
                for row in client.run(arguments):
                    print(json.dumps(row), flush=True)
                    result["rows"].append(row)
        result["memory_after"] = server.memory_mb()
        print(json.dumps(result["memory_after"]), flush=True)
    finally:
        result["log"] = server.log()
        server.close()
        if args.record:
            Path(args.record).write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(result["log"][-40:]), file=sys.stderr)


if __name__ == "__main__":
    main()
