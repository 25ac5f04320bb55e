"""Single kernels of a trace's first steps, from torch's profiler, which slows these steps."""

import logging
import time
import warnings
from collections import defaultdict

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from openinfer_engine import Tracer

MAX_STEPS = 128
"""Number of steps with kernels: the profiler holds all events in memory until it stops."""

_EVENTS_PER_WRITE = 4096

_logger = logging.getLogger(__name__)


class KernelTrace:
    """Kernels on a CUDA device, operations on a CPU. Use from the step thread.

    Starting and stopping the profiler take seconds, and steps are slower in between.

    Args:
        tracer: Tracer that receives the kernels.
        device: Device of the steps.
    """

    def __init__(self, tracer: Tracer, device: torch.device) -> None:
        self._tracer = tracer
        self._device = device
        self._num_steps = 0
        is_cuda = device.type == "cuda"
        activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._profiler: profile | None = profile(activities=[activity], acc_events=True)
            self._profiler.start()
        # The profiler counts nanoseconds since 1970; the tracer's clock starts elsewhere.
        before, since_1970, after = tracer.clock(), time.time_ns(), tracer.clock()
        self._offset_s = (before + after) / 2 - since_1970 / 1e9

    def count_step(self) -> None:
        """Counts a step that was waited for; stops the profiler after `MAX_STEPS`."""
        self._num_steps += 1
        if self._num_steps == MAX_STEPS:
            _logger.info(
                "the trace has the kernels of %d steps and continues without kernels", MAX_STEPS
            )
            self.close()

    def close(self) -> None:
        """Stops the profiler and reports its events. Idempotent."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        assert profiler.profiler is not None
        results = profiler.profiler.kineto_results
        wanted = DeviceType.CUDA if self._device.type == "cuda" else DeviceType.CPU
        found = [
            (event.start_ns(), -event.duration_ns(), event)
            for event in ([] if results is None else results.events())
            if event.device_type() == wanted
        ]
        found.sort(key=lambda entry: entry[:2])
        busy_until: dict[str, list[int]] = defaultdict(list)
        for number, (start_ns, negative_ns, event) in enumerate(found):
            end_ns = start_ns - negative_ns
            track = self._track(event, busy_until, start_ns, end_ns)
            self._tracer.span(track, event.name(), self._at(start_ns), self._at(end_ns))
            if number % _EVENTS_PER_WRITE == 0:
                self._tracer.flush()

    def _track(
        self,
        event: "torch._C._autograd._KinetoEvent",
        busy_until: dict[str, list[int]],
        start_ns: int,
        end_ns: int,
    ) -> int:
        """Returns the track of an event.

        Operations of one thread nest and share a track. Kernels of one stream that overlap get
        tracks of their own.
        """
        if self._device.type == "cpu":
            return self._tracer.track(f"operations of thread {event.start_thread_id()}")
        name = f"{self._device} stream {event.device_resource_id()}"
        lanes = busy_until[name]
        lane = next((n for n, until in enumerate(lanes) if until <= start_ns), len(lanes))
        lanes[lane : lane + 1] = [end_ns]
        return self._tracer.track(f"{name}, {lane + 1}" if lane else name)

    def _at(self, nanoseconds: int) -> float:
        return nanoseconds / 1e9 + self._offset_s
