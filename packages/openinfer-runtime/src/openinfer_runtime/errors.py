"""Errors of the runtime.

DeviceError
├── DeviceUnavailable    the device asked for is not there, or torch cannot use it
├── InsufficientMemory   weights, buffers and the least useful cache do not fit; says which flag
├── ModelRejected        the checkpoint's weights or the kernels say no; carries their words
└── CaptureFailed      the device does not record a step; the step can be launched instead
"""

from openinfer_contract import OpenInferError


class DeviceError(OpenInferError):
    """Root of this package's errors."""


class DeviceUnavailable(DeviceError):
    """The device asked for is not there, or torch cannot use it.

    Attributes:
        device: what was asked for.
    """

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"--device {device}: {reason}")
        self.device = device


class InsufficientMemory(DeviceError):
    """What must be held does not fit.

    Attributes:
        needed_bytes: what would be enough.
        available_bytes: what there is.
    """

    def __init__(self, message: str, *, needed_bytes: int, available_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class ModelRejected(DeviceError):
    """The model cannot be built from this checkpoint on this device."""


class CaptureFailed(DeviceError):
    """The device does not record a step; nothing of it has been enqueued."""
