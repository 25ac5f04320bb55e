"""Times of the executor's steps in a trace, on a host and on a device."""

import statistics

import pytest
import torch

from openinfer_contract import StartTrace, StopTrace
from openinfer_engine import Tracer
from openinfer_engine.trace._trace_file import TraceFile
from openinfer_runtime.trace import _device_trace, _kernel_trace
from openinfer_runtime.trace._device_trace import DeviceTimer
from openinfer_testing import read_trace


def traced(runner, requests, path, **more):
    """Runs requests with a trace, and reads it."""
    runner.loop.start_trace(StartTrace(str(path), **more))
    outputs = runner.run(requests)
    results = []
    runner.loop.control(StopTrace(), results.append)
    runner.loop.step()
    return outputs, read_trace(results[0].message)


def parts_of(trace, device):
    return {(part.args["step"], part.name): part for part in trace.on(f"engine {device}")}


def steps_of(trace):
    return [span for span in trace.on("engine steps") if not span.depth]


@pytest.mark.parametrize("is_padded", [False, True])
def test_every_forward_pass_and_draw_is_timed(engine, ask, tmp_path, is_padded):
    runner = engine(max_num_batched_tokens=16)
    if is_padded:
        runner.pad_steps()
    requests = [ask(range(3, 40), max_tokens=5), ask(range(3, 10), max_tokens=9)]
    _, trace = traced(runner, requests, tmp_path / "t.json")
    steps = [step for step in steps_of(trace) if step.name != "no rows"]
    parts = parts_of(trace, "cpu")
    assert len(steps) >= 9
    shares = []
    for step in steps:
        phases = {
            span.name: span
            for span in trace.spans
            if span.depth == 1 and span.track == step.track and step.holds(span)
        }
        number = step.args["step"]
        assert phases["launch"].holds(parts[number, "forward"])
        assert phases["sample"].holds(parts[number, "sample"])
        forward, launch = parts[number, "forward"], phases["launch"]
        shares.append((forward.end - forward.begin) / (launch.end - launch.begin))
    # A launch is mostly its forward pass, unless another process takes the core meanwhile.
    assert statistics.median(shares) > 0.5


def test_operations_of_the_first_steps(engine, ask, tmp_path, monkeypatch):
    monkeypatch.setattr(_kernel_trace, "MAX_STEPS", 4)
    runner = engine()
    requests = [ask(range(3, 20), max_tokens=9)]
    (expected,) = runner.run(requests)
    runner.loop.control(StartTrace(), lambda result: None)  # no folder: refused
    requests = [ask(range(3, 20), max_tokens=9)]
    (output,), trace = traced(runner, requests, tmp_path / "t.json", has_kernels=True)
    assert output.token_ids == expected.token_ids
    operations = trace.on("engine operations of thread")
    assert {"aten::embedding", "aten::linear"} & {operation.name for operation in operations}
    parts = parts_of(trace, "cpu")
    numbers = sorted(step.args["step"] for step in steps_of(trace))
    assert len(numbers) >= 9
    for number in numbers[:4]:
        inside = [op for op in operations if parts[number, "forward"].holds(op)]
        assert len(inside) > 20, "one clock for both"
    later = parts[numbers[4], "forward"]
    assert not any(later.holds(operation) for operation in operations)


def test_a_device_that_refuses_costs_the_trace_its_track(
    engine, ask, tmp_path, monkeypatch, caplog
):
    def refuse(*_):
        raise RuntimeError("no timer here")

    monkeypatch.setattr(_device_trace, "make_timer", refuse)
    runner = engine()
    (output,), trace = traced(runner, [ask([5, 6], max_tokens=4)], tmp_path / "t.json")
    assert len(output.token_ids) == 4
    assert len(steps_of(trace)) >= 4
    assert not trace.on("engine cpu")
    assert "no timer here" in caplog.text


class Device:
    """A stream of work on a clock of its own, which drifts, and the host that looks at it.

    Intervals come back as float32 milliseconds, as from CUDA.
    """

    def __init__(self, drift):
        self.now = 1000.0
        self.drift = drift
        self.free_at = 1000.0
        self.events = []

    def clock(self):
        return self.now

    def run(self, seconds):
        """Enqueues work; returns when it runs, by the host's clock."""
        begin = max(self.now, self.free_at)
        self.free_at = begin + seconds
        return begin, self.free_at

    def event(self):
        device = self

        class Event:
            at = None

            def record(self):
                self.at = max(device.now, device.free_at)

            def query(self):
                return device.now >= self.at

            def synchronize(self):
                device.now = max(device.now, self.at)

            def elapsed_time(self, end_event):
                assert self.query()
                assert end_event.query(), "asked before it has happened"
                elapsed = (end_event.at - self.at) * (1 + device.drift) * 1e3
                return torch.tensor(elapsed, dtype=torch.float32).item()

        self.events.append(Event())
        return self.events[-1]


@pytest.mark.parametrize("drift", [0.0, 5e-5, -5e-5])
def test_the_clock_of_a_device_is_laid_over_the_hosts(tmp_path, drift):
    device = Device(drift)
    tracer = Tracer(TraceFile(tmp_path / "t.json", 1 << 24), device.clock)
    timer = DeviceTimer(tracer, "device", device.event)
    truth = {}
    for step in range(4000):  # 40 s
        timer.begin()
        device.now += 20e-6
        truth[step] = device.run(0.01)
        timer.end(step, "forward")
        # The host is one step ahead of the device, so the step before is reported now.
        device.now = max(device.now, truth.get(step - 1, (0, 0))[1]) + 5e-6
        timer.report()
        if step % 500 == 499:  # idle for a while
            device.now = device.free_at + 0.5
    timer.report(is_last=True)
    tracer.close()
    parts = parts_of(read_trace(tracer.path), "device")
    assert len(parts) == 4000
    for step, (begin, end) in truth.items():
        part = parts[step, "forward"]
        assert part.begin / 1e6 == pytest.approx(begin, abs=60e-6)
        assert part.end / 1e6 == pytest.approx(end, abs=60e-6)
    assert len(device.events) < 20, "events are used again"
