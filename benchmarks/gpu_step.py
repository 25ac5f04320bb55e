"""Steps of one model on one GPU, in process: device time, idle time between steps, host time.

    python benchmarks/gpu_step.py FOLDER [--batches 1,64,256] [--contexts 128,1024] [-o FIELD=VALUE]

Every case decodes a batch of sequences of about one length through the real loop, scheduler and
executor. A step's time on the device is that between two events around it on its stream; what lies
between one step's end and the next one's begin is idle time. The host's time is that of a step less
its waits, the median over steps, the garbage collector off. At 64 rows and more every case is also
run with a quarter of them under a grammar, and with one row that asks for logprobs. -o sets options
of the engine, such as `enforce_eager=true`. Prints one JSON object a line.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch

from openinfer_contract import (
    GenerateRequest,
    Grammar,
    LogprobOptions,
    Sampling,
    StopRules,
    pack_ids,
)
from openinfer_engine import EngineLoop, EngineOptions, LaunchSpec, assemble
from openinfer_qwen3 import LINE

_NUM_STEPS = 96
_NUM_WARM = 24
_STRINGS = {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 1000}
_HELD = Grammar(kind="json_schema", text=json.dumps(_STRINGS))
"""Outlasts every case."""
_SHAPED = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "frequency_penalty": 0.2}


class Meter:
    """Events around every step of an executor, and the host's time outside of waits."""

    def __init__(self, executor: Any) -> None:
        self.events: list[tuple[Any, Any]] = []
        self.wait_s = 0.0
        self._begin: Any = None
        launch, sample, wait = executor.launch, executor.sample, executor.wait

        def launch_timed(plan: Any) -> int:
            self._begin = _event()
            return launch(plan)

        def sample_timed(ticket: int, masks: Any) -> None:
            sample(ticket, masks)
            self.events.append((self._begin, _event()))

        def wait_timed(ticket: int) -> Any:
            begun = time.perf_counter()
            try:
                return wait(ticket)
            finally:
                self.wait_s += time.perf_counter() - begun

        executor.launch, executor.sample, executor.wait = launch_timed, sample_timed, wait_timed


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def decode(
    loop: EngineLoop,
    meter: Meter,
    batch: int,
    context: int,
    num_held: int = 0,
    scored: Sequence[LogprobOptions] = (),
    **sampling: Any,
) -> dict:
    """Measures decode steps of `batch` rows, `num_held` of them under a grammar."""
    generator = torch.Generator().manual_seed(batch * 7919 + context)
    for index in range(batch):
        ids = torch.randint(1000, 100_000, (context,), generator=generator).tolist()
        is_held = index < num_held
        most = _NUM_WARM + _NUM_STEPS + 40
        loop.submit(
            GenerateRequest(
                request_id=f"{batch}-{context}-{index}-{len(sampling)}-{num_held}-{len(scored)}",
                prompt_token_ids=pack_ids(ids),
                stop=StopRules(max_tokens=most * (1 + is_held), ignore_eos=not is_held),
                sampling=Sampling(**({"temperature": 0.0} | sampling)),
                grammar=_HELD if is_held else None,
                logprobs=scored[index] if index < len(scored) else None,
            ),
            lambda event: None,
        )
    while loop.load().num_waiting or any(
        row.num_tokens > 1 for row in loop._scheduler._state.in_flight[-1].plan.rows
    ):
        loop.step()
    for _ in range(_NUM_WARM):
        loop.step()
    meter.events.clear()
    hosts = []
    begun = time.perf_counter()
    for _ in range(_NUM_STEPS):
        waited_s, step_begun = meter.wait_s, time.perf_counter()
        loop.step()
        hosts.append(time.perf_counter() - step_begun - (meter.wait_s - waited_s))
    wall_s = time.perf_counter() - begun
    torch.cuda.synchronize()
    events = meter.events[:]
    steps = [begin.elapsed_time(end) * 1e3 for begin, end in events]
    gaps = [one[1].elapsed_time(other[0]) * 1e3 for one, other in pairwise(events)]
    while loop.has_work:
        loop.step()
    return {
        "batch": batch,
        "context": context,
        "rows_under_a_grammar": num_held,
        "rows_with_logprobs": len(scored),
        "sampling": sampling,
        "step_us": round(statistics.median(steps), 1),
        "idle_us": round(statistics.median(gaps), 1),
        "idle_us_p99": round(sorted(gaps)[int(len(gaps) * 0.99)], 1),
        "wall_us": round(wall_s / _NUM_STEPS * 1e6, 1),
        "host_us": round(statistics.median(hosts) * 1e6, 1),
    }


def settle(loop: EngineLoop) -> None:
    """Waits for the vocabulary of grammars, and keeps the collector away as a server does."""
    if "grammar" in loop.info.honoured:
        request = GenerateRequest(
            request_id="settle",
            prompt_token_ids=pack_ids([1000]),
            stop=StopRules(max_tokens=1),
            grammar=_HELD,
        )
        events: list[Any] = []
        loop.submit(request, events.append)
        # A request whose grammar is being compiled is no work of the loop's yet.
        while loop.has_work or not any(event.end for event in events):
            loop.step()
    gc.collect()
    gc.freeze()
    gc.disable()


def prefill(loop: EngineLoop, meter: Meter, length: int, cached: int = 0) -> dict:
    """Steps of one prompt alone; of a cached prefix, 16 tokens are new."""
    times, hosts = [], []
    for index in range(6):
        generator = torch.Generator().manual_seed(length * 31 + (0 if cached else index))
        ids = torch.randint(1000, 100_000, (length,), generator=generator).tolist()
        if cached:
            ids[cached:] = [1000 + index] * (length - cached)
        meter.events.clear()
        request = GenerateRequest(
            request_id=f"p{length}-{cached}-{index}",
            prompt_token_ids=pack_ids(ids),
            stop=StopRules(max_tokens=1, ignore_eos=True),
            sampling=Sampling(temperature=0.0),
        )
        torch.cuda.synchronize()
        begun = time.perf_counter()
        loop.submit(request, lambda event: None)
        while loop.has_work:
            loop.step()
        hosts.append((time.perf_counter() - begun) * 1e3)
        torch.cuda.synchronize()
        times.append(sum(begin.elapsed_time(end) for begin, end in meter.events))
    return {
        "prefill": length,
        "cached": cached,
        "device_ms": round(statistics.median(times[1:]), 3),
        "wall_ms": round(statistics.median(hosts[1:]), 3),
        "first_wall_ms": round(hosts[0], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--contexts", default="128,1024")
    parser.add_argument("--prefills", default="32,256,1024,2048")
    parser.add_argument("--trace", type=int, help="print the kernels of a prompt of so many tokens")
    parser.add_argument("-o", "--option", action="append", default=[], help="field=value")
    args = parser.parse_args()
    given = dict(option.split("=", 1) for option in args.option)
    options = msgspec.convert({"device": "cuda"} | given, EngineOptions, strict=False)
    begun = time.perf_counter()
    executor = LINE.launch(LaunchSpec(model_path=args.model, model_line="qwen3", engine=options))
    print(json.dumps({"launch_s": round(time.perf_counter() - begun, 2), "options": given}))
    print(json.dumps({"memory_mib": {k: v >> 20 for k, v in executor.info.memory}}))
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({"device_used_mib": (total - free) >> 20}), flush=True)
    meter = Meter(executor)
    tokenizer = Path(args.model) / "tokenizer.json"
    loop = assemble(executor, options, model_line="qwen3", tokenizer=tokenizer)
    settle(loop)
    for length in (int(n) for n in args.prefills.split(",") if n):
        print(json.dumps(prefill(loop, meter, length)), flush=True)
        print(json.dumps(prefill(loop, meter, length, length - 16)), flush=True)
    for context in (int(n) for n in args.contexts.split(",") if n):
        for batch in (int(n) for n in args.batches.split(",") if n):
            print(json.dumps(decode(loop, meter, batch, context)), flush=True)
            if batch > 1:
                print(json.dumps(decode(loop, meter, batch, context, **_SHAPED)), flush=True)
            if batch >= 64 and "grammar" in loop.info.honoured:
                held = decode(loop, meter, batch, context, num_held=batch // 4, temperature=1.0)
                print(json.dumps(held), flush=True)
            if batch >= 64:
                top = [LogprobOptions(num_top=5)]
                print(json.dumps(decode(loop, meter, batch, context, scored=top)), flush=True)
    if args.trace:
        _trace(loop, meter, args.trace)
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({"device_used_mib": (total - free) >> 20}), flush=True)
    loop.close()


def _trace(loop: EngineLoop, meter: Meter, length: int) -> None:
    """Prints the kernels of a prompt and of the decoding after it, by total time."""
    from torch.profiler import ProfilerActivity, profile

    for name, work in (
        ("prefill", lambda: prefill(loop, meter, length)),
        ("decode", lambda: decode(loop, meter, 1, length)),
    ):
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            work()
        kernels = [e for e in profiler.key_averages() if e.self_device_time_total > 0]
        kernels.sort(key=lambda e: -e.self_device_time_total)
        for e in kernels[:24]:
            print(
                f"{name} {e.self_device_time_total / 1e3:9.3f} ms {e.count:6} x "
                f"{e.self_device_time_total / e.count:8.2f} us  {e.key[:70]}"
            )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
