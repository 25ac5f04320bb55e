"""What one event costs the front process: CPU time of many streams at once, by protocol.

    python benchmarks/front_events.py               (prints; --record also writes a result)

`openinfer serve --engine sim` answers at the pace of a modelled device, so that nothing but the
front end is measured; a client in this process reads raw bytes and counts events. CPU is that of
the front process (user and system) over a window in which every stream runs, all included: the
engine's socket, detokenising, server-sent events, the kernel's share of the writes. The goal is
30 µs at 64 streams, and 256 streams that do not fall behind 100 tokens/s each.
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
"""Path, body, and what every event of a token has in it."""


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each window")
    parser.add_argument("--sim-model", default="qwen3-8b", help="whose pace")
    parser.add_argument("--sim-device", default="rtx-5090", help="on which device")
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
    """Counts the events of one stream; its bytes are not looked at more closely."""
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
