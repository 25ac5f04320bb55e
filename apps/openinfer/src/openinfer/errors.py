"""Errors of the application: each message is one sentence that says what to do.

OpenInferError
└── AppError
    ├── UsageError         a flag or a config key that cannot be honoured
    ├── ModelNotFound      no folder, no installed checkpoint, nothing on the hub
    ├── RemoteServerError  the server given by --url did not answer as expected
    ├── RequestRejected    a prompt or a parameter that the engine cannot honour
    └── GenerationFailed   the engine could not go on
"""

from openinfer_contract import OpenInferError


class AppError(OpenInferError):
    """Root of the application's own errors."""


class UsageError(AppError):
    """A flag or a config key that cannot be honoured."""


class ModelNotFound(AppError):
    """The model is nowhere to be found.

    Attributes:
        name: what the user asked for.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"no model {name!r}: {reason}")
        self.name = name


class RemoteServerError(AppError):
    """The server given by --url did not answer as expected."""


class RequestRejected(AppError):
    """A prompt or a parameter that the engine cannot honour.

    Attributes:
        field: the request's field at fault, dotted.
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class GenerationFailed(AppError):
    """The engine could not go on."""
