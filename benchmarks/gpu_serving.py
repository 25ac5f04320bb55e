"""Figures of a server on one GPU, seen by its clients: start, latency, load, hits and memory.

    python benchmarks/gpu_serving.py FOLDER CLIENT [--rows start,latency,closed,poisson,warm]
                                     [--client-cores 12-15] [--commit HASH] [--record FILE]
                                     [--model-8b FOLDER]
                                     [-- SERVER FLAGS]

FOLDER is a checkpoint, CLIENT a load client for OpenAI servers that prints one JSON object a line
and knows the modes wait, latency, closed, poisson and warm. The server runs as users start it; the
client gets cores of its own. FILE holds every row with machine, commit, server log and floors of
the same call: what a streaming read and a matrix product reach on this device.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from openinfer_testing import results

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
        """Seconds from spawn to the first token.

        Raises:
            RuntimeError: The server has ended before.
        """
        waiting = self._client.start(["wait", "--timeout", "300"])
        while waiting.poll() is None:
            if self._process.poll() is not None:
                waiting.kill()
                raise RuntimeError("the server has ended:\n" + "\n".join(self.log()[-20:]))
            time.sleep(0.005)
        if waiting.returncode:
            raise RuntimeError("no token within 300 s:\n" + "\n".join(self.log()[-20:]))
        return round(time.perf_counter() - self._begun, 2)

    def memory_mb(self) -> dict[str, float]:
        """Returns the resident and the proportional memory of all the server's processes."""
        root = psutil.Process(self._process.pid)
        infos = [p.memory_full_info() for p in (root, *root.children(recursive=True))]
        return {
            "rss_mb": round(sum(info.rss for info in infos) / 1e6),
            "pss_mb": round(sum(info.pss for info in infos) / 1e6),
            "rss_each_mb": [round(info.rss / 1e6) for info in infos],
        }

    def idle_memory_mb(self) -> dict[str, float]:
        """Returns `memory_mb()` once it is stable for two seconds: an idle engine captures."""
        found, num_same = self.memory_mb(), 0
        while num_same < 4:
            time.sleep(0.5)
            earlier, found = found, self.memory_mb()
            num_same = num_same + 1 if abs(found["rss_mb"] - earlier["rss_mb"]) < 2 else 0
        return found

    def num_compilations(self) -> int:
        """Returns the number of kernels compiled since the engine was ready."""
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/load", timeout=10) as answer:
            return int(json.load(answer)["num_compilations"])

    def log(self) -> list[str]:
        """Returns the lines of the server's log so far."""
        return self._log.read_text().replace(str(Path.home()), "~").splitlines()

    def close(self) -> None:
        """Ends the server and waits for it."""
        self._process.terminate()
        self._process.wait(60)
        self._log.unlink()


class Client:
    """The load client, which runs on its own cores."""

    def __init__(self, path: str, cores: str | None) -> None:
        self._command = [*(["taskset", "-c", cores] if cores else []), sys.executable, path]

    def start(self, arguments: list[str]) -> subprocess.Popen[str]:
        """Starts the client in one of its modes."""
        command = [*self._command, *arguments, "--url", f"http://127.0.0.1:{PORT}"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def run(self, arguments: list[str]) -> list[dict[str, Any]]:
        """Runs the client in one mode and returns the rows that it prints."""
        with self.start(arguments) as client:
            out, _ = client.communicate()
        if client.returncode:
            raise RuntimeError(f"the client has failed at {' '.join(arguments)}")
        return [json.loads(line) for line in out.splitlines()]


def floors() -> dict[str, Any]:
    """Measures the device's bounds in a process that ends before the server starts."""
    command = [sys.executable, str(HERE / "_gpu.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def one_request(folder: str, flags: list[str], client: Client) -> dict[str, Any]:
    """A further model's start, and what one request at a time sees of it."""
    server = Server(folder, flags, client)
    try:
        start_s = server.first_token_s()
        (row,) = client.run(ROWS["latency"][0])
    finally:
        server.close()
    found = {"model": Path(folder).name, "start_to_first_token_s": start_s, "rows": [row]}
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("client")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--client-cores")
    parser.add_argument("--commit", help="where there is no clone to ask")
    parser.add_argument("--record")
    parser.add_argument("--model-8b", help="folder of a second model: latency of one request alone")
    # argparse gives a trailing `*` what stands before the first option: nothing.
    ours = sys.argv[1:]
    cut = ours.index("--") if "--" in ours else len(ours)
    args = parser.parse_args(ours[:cut])
    client = Client(args.client, args.client_cores)
    result: dict[str, Any] = {
        **results.header("gpu_serving"),
        "commit": args.commit or results.commit(),
        "model": Path(args.model).name,
        "floors": floors(),
        "rows": [],
    }
    server = Server(args.model, ours[cut + 1 :], client)
    try:
        result["start_to_first_token_s"] = server.first_token_s()
        result["memory_at_first_token"] = server.memory_mb()
        result["memory_idle"] = server.idle_memory_mb()
        print(json.dumps(result), flush=True)
        for name in args.rows.split(","):
            for arguments in ROWS[name]:
                for row in client.run(arguments):
                    print(json.dumps(row), flush=True)
                    result["rows"].append(row)
        result["memory_after"] = server.memory_mb()
        result["compilations_after_ready"] = server.num_compilations()
        print(json.dumps(result["memory_after"]), flush=True)
        print(json.dumps({"compilations_after_ready": result["compilations_after_ready"]}))
    finally:
        result["log"] = server.log()
        server.close()
        if args.model_8b:
            result["model_8b"] = one_request(args.model_8b, ours[cut + 1 :], client)
        if args.record:
            Path(args.record).write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(result["log"][-40:]), file=sys.stderr)


if __name__ == "__main__":
    main()
