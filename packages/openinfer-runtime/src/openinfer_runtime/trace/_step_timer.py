"""When steps ran on the device, for a trace: without waiting for it, and without its profiler."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from openinfer_engine import Tracer

_WINDOW_MS = 250.0
"""How long the device's clock is trusted: two clocks drift apart by 50 µs a second at worst, and
intervals are float32."""


class DeviceEvent(Protocol):
    """What `torch.cuda.Event(enable_timing=True)` is."""

    def record(self) -> None:
        """Happens when the device has done what was enqueued before."""

    def query(self) -> bool:
        """Whether it has happened."""

    def synchronize(self) -> None:
        """Waits until it has happened."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this event to a later one."""


class StepTimer(Protocol):
    """Tells a tracer when parts of steps ran. Use from the step thread."""

    def begin(self) -> None:
        """What is enqueued from here on is the next part."""

    def end(self, step_id: int, name: str) -> None:
        """The part ends with what has been enqueued."""

    def settle(self, *, is_last: bool = False) -> None:
        """Tells what is known; the last time everything, and waits for it."""


class HostTimer:
    """A `StepTimer` where operations run as they are called."""

    def __init__(self, tracer: Tracer, track: str) -> None:
        self._tracer = tracer
        self._track = tracer.track(track)
        self._begun = 0.0

    def begin(self) -> None:
        """Looks at the clock."""
        self._begun = self._tracer.clock()

    def end(self, step_id: int, name: str) -> None:
        """Tells the part."""
        args = {"step": step_id}
        self._tracer.span(self._track, name, self._begun, self._tracer.clock(), args)

    def settle(self, *, is_last: bool = False) -> None:
        """Everything has been told."""


@dataclass(frozen=True, slots=True)
class _Part:
    step_id: int
    name: str
    begun: DeviceEvent
    ended: DeviceEvent
    enqueued_at: float
    """By the host's clock, before anything of it was enqueued."""


class DeviceTimer:
    """A `StepTimer` by events on a stream, told when they have happened.

    The device's clock is laid over the host's by what cannot be otherwise: nothing begins before it
    was enqueued, nothing has ended after it was seen to have. The two drift apart. Each violation
    moves the one back over the other; and every so often the device's clock is set by the part
    that was seen soonest after its end: of a device that is waited for, at once.

    Args:
        tracer: what it is told to.
        track: of the device.
        make_event: a new event that keeps time.
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
        """The anchor's time, if what was seen soonest after its end had been seen at once."""
        self._told_until = -math.inf
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

    def settle(self, *, is_last: bool = False) -> None:
        """Tells the parts that have ended."""
        pending = self._pending
        while pending:
            if is_last:
                pending[0].ended.synchronize()
            elif not pending[0].ended.query():
                return
            self._tell(pending.popleft(), self._tracer.clock())

    def _tell(self, part: _Part, now: float) -> None:
        begin_s = self._anchor.elapsed_time(part.begun) / 1e3
        end_s = self._anchor.elapsed_time(part.ended) / 1e3
        self._soonest_s = min(self._soonest_s, now - end_s)
        self._anchor_at = max(self._anchor_at, part.enqueued_at - begin_s)
        self._anchor_at = min(self._anchor_at, now - end_s)
        # The track goes forward, even where its clock was set back.
        begin = max(self._anchor_at + begin_s, self._told_until)
        self._told_until = max(self._anchor_at + end_s, begin)
        self._tracer.span(self._track, part.name, begin, self._told_until, {"step": part.step_id})
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


def make_timer(tracer: Tracer, device: torch.device) -> StepTimer:
    """The timer of a device."""
    if device.type == "cpu":
        return HostTimer(tracer, "cpu")
    return DeviceTimer(tracer, str(device), _cuda_event)


def _cuda_event() -> DeviceEvent:
    event: DeviceEvent = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
