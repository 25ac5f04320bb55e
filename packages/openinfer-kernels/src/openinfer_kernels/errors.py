"""Errors of the ops.

```
KernelError
└── BackendUnavailable    a back end cannot run this op here
```
"""


class KernelError(Exception):
    """Base class of the errors of this package."""


class BackendUnavailable(KernelError):
    """A back end cannot run an op for this spec on this device.

    Attributes:
        op: Name of the op.
        backend: Name of the back end that was asked for; "auto" if no back end of the op can run.
        reason: Why it cannot, for the user.
    """

    def __init__(self, op: str, backend: str, reason: str) -> None:
        super().__init__(f"{op}: back end {backend!r} is unavailable: {reason}")
        self.op = op
        self.backend = backend
        self.reason = reason
