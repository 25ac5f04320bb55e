"""Shared parts of the GPU benchmarks: graph replay, lower bounds, and the result file.

`python benchmarks/_gpu.py` prints the floors of this device as JSON.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from openinfer_testing import results

_NUM_WARM = 3


def replay(steps: Sequence[Callable[[], Any]], num_replays: int) -> float:
    """Returns the milliseconds of one step: the median over replays of a graph of all steps."""
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


def num_cold(num_bytes: int) -> int:
    """Returns how many buffers fill twice the L2 cache, at least 8, so that none stays cached."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return max(8, -(-2 * l2_bytes // num_bytes))


def record(folder: Path, benchmark: str, **fields: Any) -> None:
    """Writes `BENCHMARK-DATE.json` with the name of the GPU and torch's version."""
    has_gpu = torch.cuda.is_available()
    gpu = torch.cuda.get_device_name() if has_gpu else "no GPU"
    report = {**results.header(benchmark), "gpu": gpu, "torch": torch.__version__, **fields}
    print(f"wrote {results.write(folder, report)}")


@triton.jit
def _read(x_ptr, out_ptr, SPAN: tl.constexpr, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SPAN, BLOCK):
        x = tl.load(x_ptr + offsets + start, eviction_policy="evict_first")
        total += x.to(tl.float32)
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


def read_bandwidth() -> float:
    """Returns the bytes per second of one streaming pass over memory."""
    x = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(x.numel() // 16_384, device="cuda")
    took = min(
        replay([lambda w=w: _read[(x.numel() // 16_384,)](x, out, 16_384, 4096, num_warps=w)], 5)
        for w in (4, 8)
    )
    return x.nbytes / took * 1e3


def product_flops() -> float:
    """Returns the floating-point operations per second of a large bf16 product."""
    size = 8192
    x, y = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / replay([lambda: x @ y], 5) * 1e3


def floors() -> dict[str, float]:
    """Measures the rates of a streaming read and of a large matrix product on this device."""
    return {
        "read_tb_s": round(read_bandwidth() / 1e12, 3),
        "bf16_tflop_s": round(product_flops() / 1e12, 1),
    }


if __name__ == "__main__":
    print(json.dumps({"device": torch.cuda.get_device_name(), **floors()}))
