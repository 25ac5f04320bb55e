"""CPU time of the front process per streamed event, by protocol and number of streams.

    python benchmarks/front_events.py               (--record [FOLDER] writes a result)

`openinfer serve --engine sim` streams at the pace of a modelled device, so that only the front end
is measured. A client in this process reads raw bytes and counts events. The figure is the front
process's user and system time over a window in which every stream runs: the engine's socket,
detokenizing, server-sent events, and writes in the kernel. The goals are 30 µs per event at 64
streams, and at least 100 tokens/s for each of 256 streams.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psutil
from _others import OthersMeter

from openinfer_testing import results

GOAL_US = 30
SETTLE_S = 3.0
_READY = re.compile(r"ready in [\d.]+ s: .* (http://\S+)$")
_HELLO = [{"role": "user", "content": "Hello!"}]
PROTOCOLS: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "completions": ("/v1/completions", {"prompt": "Hello!"}, b'"text":'),
    "chat": ("/v1/chat/completions", {"messages": _HELLO}, b'"content":'),
    "responses": ("/v1/responses", {"input": "Hello!"}, b"event: response.output_text.delta"),
    "messages": ("/v1/messages", {"messages": _HELLO}, b"event: content_block_delta"),
}
"""Path, body, and the bytes that mark an event with a token, by protocol."""


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each window")
    parser.add_argument("--sim-model", default="qwen3-8b", help="model whose pace is simulated")
    parser.add_argument("--sim-device", default="rtx-5090", help="device whose pace is simulated")
    results.add_record_flag(parser)
    arguments = parser.parse_args()
    with _server(arguments.sim_model, arguments.sim_device) as (url, front):
        runs = [
            asyncio.run(_measure(url, front, protocol, streams, arguments.seconds))
            for streams in arguments.streams
            for protocol in PROTOCOLS
        ]
    report = {
        **results.header("front_events"),
        "goal_us": GOAL_US,
        "modelled": f"{arguments.sim_model} on {arguments.sim_device}",
        "runs": runs,
    }
    print(json.dumps(report, indent=2))
    if arguments.record:
        results.write(arguments.record, report, suffix=f"-{arguments.sim_model}")


@contextmanager
def _server(model: str, device: str) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "openinfer", "serve", "--port", "0", "--engine", "sim"]
    with subprocess.Popen(
        [*command, "--sim-model", model, "--sim-device", device, "--max-model-len", "2000"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            found = next(filter(None, map(_READY.search, process.stderr)))
            yield found[1], psutil.Process(process.pid)
        finally:
            process.terminate()


async def _measure(
    url: str, front: psutil.Process, protocol: str, num_streams: int, seconds: float
) -> dict[str, Any]:
    counts = [0] * num_streams
    readers = [asyncio.create_task(_read(url, protocol, counts, i)) for i in range(num_streams)]
    while not all(counts):
        await asyncio.sleep(0.05)
    await asyncio.sleep(SETTLE_S)
    others = OthersMeter()
    begun, used, seen = time.monotonic(), front.cpu_times(), list(counts)
    await asyncio.sleep(seconds)
    took, now = time.monotonic() - begun, front.cpu_times()
    gained = [after - before for before, after in zip(seen, counts, strict=True)]
    percent = others.percent()
    is_whole = not any(reader.done() for reader in readers)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    cpu_s = now.user + now.system - used.user - used.system
    return {
        "protocol": protocol,
        "streams": num_streams,
        "events_per_s": round(sum(gained) / took),
        "slowest_stream_per_s": round(min(gained) / took, 1),
        "cpu_us_per_event": round(1e6 * cpu_s / sum(gained), 1),
        "of_it_in_the_kernel": round(1e6 * (now.system - used.system) / sum(gained), 1),
        "front_cpu_percent": round(100 * cpu_s / took, 1),
        "others_busy_percent": percent,
        "every_stream_ran_throughout": is_whole,
    }


async def _read(url: str, protocol: str, counts: list[int], index: int) -> None:
    """Counts the events of one stream by their mark."""
    path, body, mark = PROTOCOLS[protocol]
    fields = {"stream": True, "ignore_eos": True, "max_tokens": 1900, "max_output_tokens": 1900}
    payload = json.dumps({"model": "tiny"} | body | fields).encode()
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    try:
        while chunk := await reader.read(1 << 16):
            counts[index] += chunk.count(mark)
    finally:
        writer.close()


if __name__ == "__main__":
    main()
