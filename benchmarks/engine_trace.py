"""Measures the cost of a trace for the loop, in µs per step, by number of rows.

    python benchmarks/engine_trace.py

The executor takes no time, so the loop's own time is measured. The trace is written to a temporary
folder. Each figure is the minimum of several rounds, which alternate with and without a trace.
"""

import tempfile
import time

from openinfer_contract import (
    CommandResult,
    GenerateRequest,
    Sampling,
    StartTrace,
    StopRules,
    StopTrace,
    pack_ids,
)
from openinfer_engine import EngineLoop, EngineOptions, assemble
from openinfer_engine.trace._loop_trace import LoopTrace
from openinfer_testing import CountingShape, ZeroCostExecutor, read_trace

ROWS = (1, 8, 64)
STEPS = 400
ROUNDS = 12
CALLS_PER_STEP = 7


def microseconds_per_step(loop: EngineLoop, num_rows: int) -> float:
    """Runs one round, from the first submit to the last end."""
    for row in range(num_rows):
        request = GenerateRequest(
            request_id=str(row),
            prompt_token_ids=pack_ids([5, 6, 7]),
            sampling=Sampling(temperature=0.0),
            stop=StopRules(max_tokens=STEPS, ignore_eos=True),
        )
        loop.submit(request, lambda event: None)
    num_steps, begun = 0, time.perf_counter()
    while loop.has_work:
        loop.step()
        num_steps += 1
    return (time.perf_counter() - begun) / num_steps * 1e6


def microseconds_off() -> float:
    """Measures the calls of one step while there is no trace."""
    off, num = LoopTrace(), 200_000
    begun = time.perf_counter()
    for _ in range(num):
        off.mark(1, "launch")
    return (time.perf_counter() - begun) / num * CALLS_PER_STEP * 1e6


def main() -> None:
    """Prints one line for each number of rows."""
    print(f"{CALLS_PER_STEP} calls that do nothing: {microseconds_off():.2f} us")
    with tempfile.TemporaryDirectory() as folder:
        for num_rows in ROWS:
            shape = CountingShape(max_num_seqs=num_rows, num_blocks=64 * num_rows)
            options = EngineOptions(trace_dir=folder)
            bare, traced = (assemble(ZeroCostExecutor(shape), options) for _ in range(2))
            results: list[CommandResult] = []
            traced.control(StartTrace(), results.append)
            traced.step()
            # Rounds alternate, so that other load on the machine affects both cases.
            rounds = [
                [microseconds_per_step(loop, num_rows) for loop in (bare, traced)]
                for _ in range(ROUNDS)
            ]
            off, on = map(min, zip(*rounds, strict=True))
            traced.control(StopTrace(), results.append)
            traced.step()
            bare.close()
            traced.close()
            num_spans = len(read_trace(results[-1].message).spans)
            print(f"{num_rows:3} rows: {off:6.1f} us off, {on:6.1f} us on ({num_spans} spans)")


if __name__ == "__main__":
    main()
