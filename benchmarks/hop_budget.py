"""Time that OpenInfer adds to a request's first token: client to first byte without a model.

    python benchmarks/hop_budget.py                 (--record [FOLDER] writes a result)

The real front end (HTTP, tokenizer, SSE) and a real engine process, joined by their socket, over
an executor that counts instead of computing. One client in a process of its own, one request at a
time, on one kept-alive connection: 32 prompt tokens in, a streamed completion out. The goal is
750 µs at the median on two cores (architecture, "Processes").
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from _others import OthersMeter

from openinfer_contract import GenerateRequest, Sampling, StopRules, num_ids
from openinfer_contract import stream as stream_events
from openinfer_engine import EngineSupervisor, LaunchSpec
from openinfer_frontend import FixedEngine, FrontendConfig, bind, create_app, new_event_loop, serve
from openinfer_testing import results
from openinfer_text import TextModel
from openinfer_tiny import CHECKPOINT

GOAL_US = 750
NUM_PROMPT_TOKENS = 32
MAX_TOKENS = 8
NUM_WARM = 200
MAX_OTHERS_PERCENT = 10
_WORDS = ("the", "sea", "and", "small", "bird", "saw", "one", "red", "boat", "go", "cold", "house")


def main() -> None:
    """Measures; with --server, runs the measured server instead."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=1000, help="per run")
    parser.add_argument("--runs", type=int, default=3)
    results.add_record_flag(parser)
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.server:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(arguments.requests))
        return
    report = _measure(arguments.requests, arguments.runs)
    print(json.dumps(report, indent=2))
    if arguments.record:
        results.write(arguments.record, report)


def _measure(num_requests: int, num_runs: int) -> dict[str, Any]:
    text = TextModel.from_folder(CHECKPOINT.path())
    command = [sys.executable, __file__, "--server", "--requests", str(num_requests)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        try:
            runs = _runs(ready["port"], text, num_requests, num_runs, server.pid)
            with _awake_cores():
                awake = _runs(ready["port"], text, num_requests, 1, server.pid)[0]
                del awake["others_busy_percent"]  # the spinners
        finally:
            server.terminate()
            server.wait()
    # Other processes' CPU use decides whether a run counts, never its own result.
    quiet = [run for run in runs if run["others_busy_percent"] < MAX_OTHERS_PERCENT]
    best = min(quiet, key=lambda run: run["first_byte_us"]["p50"], default=None)
    return {
        **results.header("hop_budget"),
        "prompt_tokens": NUM_PROMPT_TOKENS,
        "requests_per_run": num_requests,
        "goal_us": GOAL_US,
        "best_quiet": best,
        "cores_kept_awake": awake,
        "inside_us": ready["inside_us"],
        "runs": runs,
    }


@contextmanager
def _awake_cores() -> Iterator[None]:
    """Spins on every core at the lowest class, which yields at once: no core ever halts.

    What the figures gain by it is the price of waking a halted core, four times a request.
    """
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _runs(
    port: int, text: TextModel, num_requests: int, num_runs: int, server_pid: int
) -> list[dict[str, Any]]:
    bodies = _bodies(text)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(NUM_WARM):
            _first_byte_s(sock, next(bodies))
        runs = []
        for _ in range(num_runs):
            load, others = os.getloadavg()[0], OthersMeter(lambda: _ours(server_pid))
            firsts = [_first_byte_s(sock, next(bodies)) for _ in range(num_requests)]
            floor = [_health_s(sock) for _ in range(num_requests)]
            runs.append(
                {
                    "first_byte_us": _quantiles(firsts),
                    "http_get_us": _quantiles(floor),
                    "load": round(load, 2),
                    "others_busy_percent": others.percent(),
                }
            )
    return runs


def _ours(server_pid: int) -> list[psutil.Process]:
    server = psutil.Process(server_pid)
    return [psutil.Process(), server, *server.children()]


def _first_byte_s(sock: socket.socket, body: bytes) -> float:
    """From sending the request to the first byte of the first server-sent event."""
    begun = time.perf_counter()
    sock.sendall(body)
    answer = sock.recv(65536)
    while b"data: " not in answer:
        answer += _more(sock)
    first = time.perf_counter() - begun
    assert answer.startswith(b"HTTP/1.1 200"), answer
    while not answer.endswith(b"\r\n0\r\n\r\n"):
        answer += _more(sock)
    return first


def _health_s(sock: socket.socket) -> float:
    """An HTTP exchange that does nothing: what no server on this stack can do without."""
    begun = time.perf_counter()
    sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = sock.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    return time.perf_counter() - begun


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    assert data, "the server hung up"
    return data


def _bodies(text: TextModel) -> Iterator[bytes]:
    for prompt in _prompts(text):
        body = json.dumps(
            {"model": "tiny", "prompt": prompt, "stream": True, "max_tokens": MAX_TOKENS}
            | {"temperature": 0, "ignore_eos": True}
        ).encode()
        yield (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )


def _prompts(text: TextModel) -> Iterator[str]:
    """Texts of `NUM_PROMPT_TOKENS` tokens that share no first block with one another."""
    rng = random.Random(0)
    while True:
        words: list[str] = []
        while (size := num_ids(text.encode(" ".join(words)))) < NUM_PROMPT_TOKENS:
            words.append(rng.choice(_WORDS))
        if size == NUM_PROMPT_TOKENS:
            yield " ".join(words)


async def _serve(num_requests: int) -> None:
    shape = {"vocab_size": 2048, "max_num_seqs": 64, "num_blocks": 4096}
    engine = EngineSupervisor(
        LaunchSpec(model_path="", model_line="counting", line_options=shape),
        factory="openinfer_testing:zero_cost_executor",
    )
    try:
        await engine.start()
        text = TextModel.from_folder(CHECKPOINT.path())
        inside = {
            "encode": _encode_us(text, num_requests),
            "engine_first_event": await _engine_us(engine, text, num_requests),
        }
        config = FrontendConfig(served_model_names=("tiny",), version="benchmark")
        app = create_app(FixedEngine(engine), text, config)
        sock = bind("127.0.0.1", 0)
        ready = {"port": sock.getsockname()[1], "inside_us": inside}
        await serve(
            app, [sock], on_ready=_freeze_then(lambda: print(json.dumps(ready), flush=True))
        )
    finally:
        await engine.shutdown()


def _freeze_then(announce: Callable[[], None]) -> Callable[[], None]:
    def on_ready() -> None:
        gc.collect()
        gc.freeze()
        announce()

    return on_ready


def _encode_us(text: TextModel, num_requests: int) -> dict[str, float]:
    """The tokenizer's share."""
    samples = []
    for prompt in itertools.islice(_prompts(text), num_requests):
        begun = time.perf_counter()
        text.encode(prompt + ".")
        samples.append(time.perf_counter() - begun)
    return _quantiles(samples)


async def _engine_us(
    engine: EngineSupervisor, text: TextModel, num_requests: int
) -> dict[str, float]:
    """Submit to first event over the engine's socket: both ways, and everything in the engine."""
    samples = []
    for number, prompt in enumerate(itertools.islice(_prompts(text), num_requests)):
        request = GenerateRequest(
            request_id=f"inside-{number}",
            prompt_token_ids=text.encode(prompt),
            sampling=Sampling(temperature=0.0),
            stop=StopRules(max_tokens=MAX_TOKENS, ignore_eos=True),
        )
        begun, first = time.perf_counter(), None
        async for _ in stream_events(engine, request):
            first = first or time.perf_counter() - begun
        assert first is not None
        samples.append(first)
    return _quantiles(samples)


def _quantiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {name: round(cuts[at] * 1e6, 1) for name, at in (("p50", 49), ("p90", 89), ("p99", 98))}


if __name__ == "__main__":
    main()
