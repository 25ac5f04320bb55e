"""Times of steps on the device, for a trace, without waiting for the device.

A trace never fails a step. If the device or the profiler raises an error, the error is logged and
the trace continues without times of the device.
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from openinfer_engine import Tracer
from openinfer_runtime.trace._kernel_trace import KernelTrace

_WINDOW_MS = 250.0
"""Time after which the device's clock is set again: two clocks drift apart by at most 50 us a
second, and CUDA reports intervals as float32."""

DeviceEvent = Any
"""A `torch.cuda.Event(enable_timing=True)`, whose methods have no type annotations."""

_logger = logging.getLogger(__name__)


class DeviceTrace:
    """Times of forward passes and draws, and of their kernels if the tracer wants them.

    Use from the step thread.

    Args:
        tracer: Tracer that receives the times.
        device: Device of the steps.
    """

    def __init__(self, tracer: Tracer, device: torch.device) -> None:
        self._timer: HostTimer | DeviceTimer | None = None
        self._kernels: KernelTrace | None = None
        try:
            self._timer = make_timer(tracer, device)
            if tracer.has_kernels:
                self._kernels = KernelTrace(tracer, device)
        except RuntimeError as error:
            self._stop(error)

    def begin(self) -> None:
        """Begins a part of a step: what is enqueued from now on belongs to it."""
        if self._timer is not None:
            self._timer.begin()

    def end(self, step_id: int, part: str) -> None:
        """Ends the part after what has been enqueued."""
        if self._timer is not None:
            self._timer.end(step_id, part)

    def report(self) -> None:
        """Reports the parts that have ended. Call it after a step was waited for."""
        try:
            if self._timer is not None:
                self._timer.report()
            if self._kernels is not None:
                self._kernels.count_step()
        except RuntimeError as error:
            self._stop(error)

    def close(self) -> None:
        """Reports all parts. Waits for the device."""
        try:
            if self._timer is not None:
                self._timer.report(is_last=True)
            if self._kernels is not None:
                self._kernels.close()
        except RuntimeError as error:
            self._stop(error)

    def _stop(self, error: RuntimeError) -> None:
        _logger.warning("the trace continues without times of the device: %s", error)
        self._timer = self._kernels = None


class HostTimer:
    """Times of parts on a device whose operations have run when the call returns."""

    def __init__(self, tracer: Tracer, track: str) -> None:
        self._tracer = tracer
        self._track = tracer.track(track)
        self._begun = 0.0

    def begin(self) -> None:
        """Begins a part."""
        self._begun = self._tracer.clock()

    def end(self, step_id: int, name: str) -> None:
        """Ends the part and reports it."""
        args = {"step": step_id}
        self._tracer.span(self._track, name, self._begun, self._tracer.clock(), args)

    def report(self, *, is_last: bool = False) -> None:
        """Does nothing: `end` has reported."""


@dataclass(frozen=True, slots=True)
class _Part:
    step_id: int
    name: str
    begun: DeviceEvent
    ended: DeviceEvent
    enqueued_at: float
    """Host time before anything of the part was enqueued."""


class DeviceTimer:
    """Times of parts by events on a stream, reported once the events have happened.

    The offset between the clocks of device and host follows from two facts: no part begins before
    it was enqueued, and no part ends after the host saw its end. Each violation moves the offset.
    Because the clocks drift apart, the offset is also set again every `_WINDOW_MS`, by the part
    whose end the host saw soonest: on a device that is waited for, that is at once.

    Args:
        tracer: Tracer that receives the times.
        track: Name of the device's track.
        make_event: Returns a new event that takes times.
    """

    def __init__(self, tracer: Tracer, track: str, make_event: Callable[[], DeviceEvent]) -> None:
        self._tracer = tracer
        self._track = tracer.track(track)
        self._make_event = make_event
        self._spare: list[DeviceEvent] = []
        self._pending: deque[_Part] = deque()
        self._anchor = make_event()
        self._anchor.record()
        self._anchor.synchronize()
        self._anchor_at = tracer.clock()
        self._soonest_s = math.inf
        """Host time of the anchor, by the part whose end was seen soonest."""
        self._reported_until = -math.inf
        self._begun: DeviceEvent | None = None
        self._enqueued_at = 0.0

    def begin(self) -> None:
        """Enqueues an event."""
        self._enqueued_at = self._tracer.clock()
        self._begun = self._event()

    def end(self, step_id: int, name: str) -> None:
        """Enqueues an event."""
        begun, self._begun = self._begun, None
        if begun is not None:
            part = _Part(step_id, name, begun, self._event(), self._enqueued_at)
            self._pending.append(part)

    def report(self, *, is_last: bool = False) -> None:
        """Reports the parts that have ended; if `is_last`, waits for all."""
        pending = self._pending
        while pending:
            if is_last:
                pending[0].ended.synchronize()
            elif not pending[0].ended.query():
                return
            self._report(pending.popleft(), self._tracer.clock())

    def _report(self, part: _Part, now: float) -> None:
        begin_s = self._anchor.elapsed_time(part.begun) / 1e3
        end_s = self._anchor.elapsed_time(part.ended) / 1e3
        self._soonest_s = min(self._soonest_s, now - end_s)
        self._anchor_at = max(self._anchor_at, part.enqueued_at - begin_s)
        self._anchor_at = min(self._anchor_at, now - end_s)
        # Spans of a track must not overlap, even where the offset was moved back.
        begin = max(self._anchor_at + begin_s, self._reported_until)
        self._reported_until = max(self._anchor_at + end_s, begin)
        args = {"step": part.step_id}
        self._tracer.span(self._track, part.name, begin, self._reported_until, args)
        self._spare.append(part.begun)
        if end_s * 1e3 > _WINDOW_MS:
            self._spare.append(self._anchor)
            self._anchor, self._anchor_at = part.ended, self._soonest_s + end_s
            self._soonest_s = math.inf
        else:
            self._spare.append(part.ended)

    def _event(self) -> DeviceEvent:
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        return event


def make_timer(tracer: Tracer, device: torch.device) -> HostTimer | DeviceTimer:
    """Returns the timer of a device."""
    if device.type == "cpu":
        return HostTimer(tracer, "cpu")
    return DeviceTimer(tracer, str(device), lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
