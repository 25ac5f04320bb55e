"""What an executor adds to a trace."""

import logging

import torch

from openinfer_engine import Tracer
from openinfer_runtime.trace._kernel_trace import KernelTrace
from openinfer_runtime.trace._step_timer import StepTimer, make_timer

_logger = logging.getLogger(__name__)


class DeviceTrace:
    """When parts of steps ran on a device, and their kernels if asked for.

    For the step thread. A trace harms no step: what the device or the profiler refuses is logged,
    and the trace goes on without.

    Args:
        tracer: what it is told to.
        device: where steps run.
    """

    def __init__(self, tracer: Tracer, device: torch.device) -> None:
        self._timer: StepTimer | None = None
        self._kernels: KernelTrace | None = None
        try:
            self._timer = make_timer(tracer, device)
            if tracer.has_kernels:
                self._kernels = KernelTrace(tracer, device)
        except RuntimeError as error:
            self._give_up(error)

    def begin(self) -> None:
        """What is enqueued from here on is the next part of a step."""
        if self._timer is not None:
            self._timer.begin()

    def end(self, step_id: int, part: str) -> None:
        """The part ends with what has been enqueued."""
        if self._timer is not None:
            self._timer.end(step_id, part)

    def settle(self) -> None:
        """A step has been waited for: tells what is known by now."""
        try:
            if self._timer is not None:
                self._timer.settle()
            if self._kernels is not None:
                self._kernels.count()
        except RuntimeError as error:
            self._give_up(error)

    def close(self) -> None:
        """Tells the rest. Waits for the device."""
        try:
            if self._timer is not None:
                self._timer.settle(is_last=True)
            if self._kernels is not None:
                self._kernels.close()
        except RuntimeError as error:
            self._give_up(error)

    def _give_up(self, error: RuntimeError) -> None:
        _logger.warning("the trace goes on without the device: %s", error)
        self._timer = self._kernels = None
