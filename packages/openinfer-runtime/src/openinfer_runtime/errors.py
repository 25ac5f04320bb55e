"""Errors of the runtime.

DeviceError
├── DeviceUnavailable    the device does not exist, or torch cannot use it
├── InsufficientMemory   weights, buffers and the smallest useful cache do not fit
├── ModelRejected        the model cannot be built from this checkpoint on this device
└── CaptureFailed        a step cannot be captured; it can be launched instead
"""

from openinfer_contract import OpenInferError


class DeviceError(OpenInferError):
    """Root of this package's errors."""


class DeviceUnavailable(DeviceError):
    """The requested device does not exist, or torch cannot use it.

    Attributes:
        device: Requested device.
    """

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"--device {device}: {reason}")
        self.device = device


class InsufficientMemory(DeviceError):
    """Weights, buffers or the smallest useful cache do not fit; the message names the flag.

    Attributes:
        needed_bytes: Memory that would be enough.
        available_bytes: Memory that exists.
    """

    def __init__(self, message: str, *, needed_bytes: int, available_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class ModelRejected(DeviceError):
    """The model cannot be built from this checkpoint on this device."""


class CaptureFailed(DeviceError):
    """A step cannot be captured. Nothing of it has been enqueued."""
