"""Errors of the ops.

```
KernelError
└── BackendUnavailable    a backend asked for by name cannot run this op here
```
"""


class KernelError(Exception):
    """Root of every error this package raises on purpose."""


class BackendUnavailable(KernelError):
    """A backend cannot run an op for this spec on this device.

    Attributes:
        op: Name of the op.
        backend: Name of the backend that was asked for; "auto" when none of the op's can run.
        reason: Why not, in words for the person who asked.
    """

    def __init__(self, op: str, backend: str, reason: str) -> None:
        super().__init__(f"{op}: backend {backend!r} is unavailable: {reason}")
        self.op = op
        self.backend = backend
        self.reason = reason
