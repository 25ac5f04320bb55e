"""Time to simulate an hour of one replica at 8 requests a second.

python benchmarks/simulated_hour.py [--record [FOLDER]]
"""

import time

from openinfer_sim import parse_trace, simulate
from openinfer_testing import results

TRACE = "poisson:rate=8,duration=3600"
GOAL_S = 90.0


def measure() -> dict[str, object]:
    """Returns wall and CPU seconds of the simulation, and its own figures."""
    trace = parse_trace(TRACE)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    report = simulate(trace).report
    took_s, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    assert report.num_served == trace.num_requests
    print(f"{TRACE}: {took_s:.1f} s, {cpu_s:.1f} s of one core, {report.num_served} requests")
    return {
        "trace": TRACE,
        "goal_s": GOAL_S,
        "took_s": round(took_s, 1),
        "cpu_s": round(cpu_s, 1),
        "num_requests": report.num_served,
        "ttft_ms_p50": round(report.ttft_ms.p50, 2),
    }


if __name__ == "__main__":
    results.run("simulated-hour", measure, __doc__)
